// SentencePiece-style tokens with a list of merges, as in Gemma 4: neighbours are joined in the order of the list, as
// in BPE; spaces are U+2581, and characters without a token become byte tokens.
#pragma once
#include "models/joins.h"
#include "models/pair_table.h"
#include "models/vocab.h"

namespace kvrun {

class SpmMerges {
 public:
	SpmMerges(const Gguf&, const Vocab&);
	// Appends the ids of `text`, whose spaces must be U+2581.
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	void run(const Vocab&, std::string_view run, std::vector<Symbol>& symbols, std::vector<uint32_t>& out) const;
	PairTable<uint32_t> characters_;      // (bytes of a character, their number) -> its symbol
	PairTable<Join> merges_;              // two symbols -> rank in the list, the joined symbol
	std::vector<uint32_t> symbol_tokens_; // token of each symbol, or kNoToken
};

} // namespace kvrun
