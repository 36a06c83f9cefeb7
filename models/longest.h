// The longest token that a text begins with, and so on: the World tokenizer of RWKV, whose tokens are strings of bytes.
#pragma once
#include "models/piece_trie.h"
#include "models/vocab.h"

namespace kvrun {

class Longest {
 public:
	explicit Longest(const Vocab&);
	void encode(const Vocab&, std::string_view text, std::vector<uint32_t>& out) const;

 private:
	PieceTrie trie_;
};

// The bytes of a token as files have them: Python's escapes \t, \n, \r, \\, \' and \xNN.
std::string unescaped_token(std::string_view text);

} // namespace kvrun
