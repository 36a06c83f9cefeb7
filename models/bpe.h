// Byte-level BPE: text is cut into pieces, the bytes of a piece are written as characters, and neighbouring symbols are
// joined in the order of the list of merges.
#pragma once
#include "models/joins.h"
#include "models/pair_table.h"
#include "models/pretokenize.h"
#include "models/vocab.h"

namespace kvrun {

class Bpe {
 public:
	Bpe(const Gguf&, const Vocab&);
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;
	const PreTokenizer& pre() const { return pre_; }
	const std::string& pre_name() const { return pre_name_; }

	// The bytes that a token's text stands for; characters outside the alphabet are copied.
	static std::string bytes_of(std::string_view token_text);

 private:
	void read_merges(const Gguf&, const Vocab&);
	void piece(const Vocab&, std::string_view piece, std::vector<Symbol>& symbols, std::vector<uint32_t>& out) const;
	void push_symbol(const Vocab&, uint32_t symbol, std::string_view bytes, std::vector<uint32_t>& out) const;

	std::string pre_name_;
	PreTokenizer pre_;
	PairTable<Join> merges_;              // two symbols -> rank in the list, the joined symbol
	std::vector<uint32_t> symbol_tokens_; // token of each symbol, or kNoToken; symbols 0..255 are the single bytes
};

} // namespace kvrun
