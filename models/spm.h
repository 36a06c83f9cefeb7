// SentencePiece-style tokens: the neighbours whose joint text is the token of the highest score are joined, until none
// are.
#pragma once
#include "models/joins.h"
#include "models/pair_table.h"
#include "models/vocab.h"

namespace kvrun {

// Byte tokens, or the unknown token where there is none. A mark that is no token is the space it stands for.
void push_byte_tokens(const Vocab&, std::string_view bytes, std::vector<uint32_t>& out);

constexpr std::string_view kSpaceMark = "\xe2\x96\x81"; // U+2581, a space in texts of tokens

class Spm {
 public:
	explicit Spm(const Vocab&);
	// Appends the ids of `text`, in which spaces are U+2581 already. Characters without a token become byte tokens.
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	uint32_t word(const Vocab&, std::string_view text) const; // the token this text may become, or kNoToken
	void run(const Vocab&, std::string_view run, std::vector<Symbol>& symbols, std::vector<uint32_t>& out) const;
	std::vector<uint32_t> ranks_; // (vocab) place of each token's score among all, the highest first
	PairTable<char> neighbours_;  // characters that are next to each other in some token
};

} // namespace kvrun
