// PLaMo's unigram tokens: of all ways to cut a text into tokens the one with the highest sum of scores is taken, which
// are whole numbers. The text is not normalised; characters without a token become those of their bytes.
#pragma once
#include "models/piece_trie.h"
#include "models/vocab.h"

namespace kvrun {

class PlamoTokens {
 public:
	explicit PlamoTokens(const Vocab&);
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	// Of `text`, which no token crosses the ends of.
	void encode_part(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;
	std::vector<int64_t> scores_; // (vocab)
	PieceTrie trie_;
};

} // namespace kvrun
