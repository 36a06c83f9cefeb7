// SentencePiece's unigram tokens, those of T5 and XLM-RoBERTa: the text is normalized, then of all ways to cut it into
// tokens the one with the highest sum of scores is taken.
#pragma once
#include "models/charsmap.h"
#include "models/piece_trie.h"
#include "models/vocab.h"

namespace kvrun {

// Tokens of a text in a unigram vocabulary. Throws if one is too long.
std::vector<PieceTrie::Piece> unigrams_of(const Vocab&);

class Ugm {
 public:
	Ugm(const Gguf&, const Vocab&);
	// space_prefix: the text begins with a space, if there is anything but spaces.
	void encode(const Vocab&, std::string_view text, bool space_prefix, std::vector<uint32_t>& out) const;

 private:
	struct Best {       // the best way to a place in the text
		double score;   // sum of its tokens
		uint32_t bytes; // of its last token
		uint32_t id;    // or kNoToken: a character without a token
	};
	class Path;
	std::string normalized(const Vocab&, std::string_view text, bool space_prefix) const;
	Charsmap::Hit step(std::string_view text) const;
	std::vector<double> scores_; // (vocab) as they count; for tokens in the trie
	double unknown_score_ = 0;   // of a character without a token
	bool strips_ = false;        // spaces at both ends, and those behind a space, are dropped
	Charsmap charsmap_;
	PieceTrie trie_;
};

} // namespace kvrun
