// WordPiece, the tokens of BERT: of each word the longest token that it begins with, and so on; words that are not made
// of tokens are unknown.
#pragma once
#include "models/bert_words.h"
#include "models/piece_trie.h"
#include "models/vocab.h"

namespace kvrun {

class Wpm {
 public:
	Wpm(const Gguf&, const Vocab&);
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	struct Pieces { // texts of tokens without the mark
		std::vector<PieceTrie::Piece> begin, inside;
	};
	static Pieces pieces_of(const Vocab&);
	Wpm(const Gguf&, Pieces);
	void word(const Vocab&, std::string_view word, std::vector<uint32_t>& out) const;
	BertRules rules_;
	PieceTrie begin_, inside_; // tokens that begin a word, that continue one
};

} // namespace kvrun
