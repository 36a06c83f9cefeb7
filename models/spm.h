// SentencePiece-style tokens: of all neighbours whose joint text is a token, those with the highest score are joined
// first, until no neighbours can be joined.
#pragma once
#include "models/joins.h"
#include "models/pair_table.h"
#include "models/vocab.h"

namespace kvrun {

// Appends byte tokens, or the unknown token for a byte without one. A space mark without a token becomes a space.
void push_byte_tokens(const Vocab&, std::string_view bytes, std::vector<uint32_t>& out);

constexpr std::string_view kSpaceMark = "\xe2\x96\x81"; // U+2581, a space in texts of tokens

class Spm {
 public:
	explicit Spm(const Vocab&);
	// Appends the ids of `text`, whose spaces must be U+2581. Characters without a token become byte tokens.
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	uint32_t word(const Vocab&, std::string_view text) const; // the token that `text` may become, or kNoToken
	void run(const Vocab&, std::string_view run, std::vector<Symbol>& symbols, std::vector<uint32_t>& out) const;
	std::vector<uint32_t> ranks_; // (vocab) rank of each token's score, 0 for the highest
	PairTable<char> neighbours_;  // pairs of characters that are adjacent in some token
};

} // namespace kvrun
