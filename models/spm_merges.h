// SentencePiece-style tokens that a list of merges makes, as Gemma 4 has them: neighbours are joined in the order of
// the list, as in BPE; texts have U+2581 for spaces and byte tokens for what has no token.
#pragma once
#include "models/joins.h"
#include "models/pair_table.h"
#include "models/vocab.h"

namespace kvrun {

class SpmMerges {
 public:
	SpmMerges(const Gguf&, const Vocab&);
	// Appends the ids of `text`, in which spaces are U+2581 already.
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	void run(const Vocab&, std::string_view run, std::vector<Symbol>& symbols, std::vector<uint32_t>& out) const;
	PairTable<uint32_t> characters_;      // by its bytes and their number: the symbol of one character
	PairTable<Join> merges_;              // of two symbols: place in the list, the symbol both become
	std::vector<uint32_t> symbol_tokens_; // token of each symbol, or kNoToken
};

} // namespace kvrun
