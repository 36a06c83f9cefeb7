// Finds control and user-defined tokens in a text: an Aho-Corasick automaton over the reversed tokens runs from the end
// of the text, so that at each position it knows the longest token that begins there.
#pragma once
#include "models/pair_table.h"
#include "models/vocab.h"

namespace kvrun {

class SpecialTokens {
 public:
	explicit SpecialTokens(const Vocab&);

	struct Hit {
		size_t at;   // text.size() if there is none
		uint32_t id; // of the token that begins there
	};
	// Goes through one text from left to right, in time linear in its length, however long the tokens are.
	class Finder {
	 public:
		// Control and unknown tokens count only if `control`.
		Finder(const SpecialTokens& tokens, std::string_view text, bool control)
		    : tokens_(tokens), text_(text), control_(control) {}
		// The first place at or after `from` where a token begins, and the longest one there. `from` never decreases.
		Hit next(size_t from);

	 private:
		void fill(size_t begin);
		const SpecialTokens& tokens_;
		const std::string_view text_;
		const bool control_;
		size_t begin_ = 0;            // start of the block that has been searched
		std::vector<uint32_t> found_; // (bytes of the block) the longest token that begins there, or kNoToken
	};

 private:
	struct Node {
		uint32_t fail = 0;                        // node of the longest proper suffix of its text
		uint32_t any = kNoToken, user = kNoToken; // the longest token that is a suffix: any, user-defined
		uint32_t longest(bool control) const { return control ? any : user; }
	};
	struct Step { // edge by which a node was reached
		uint32_t parent, depth;
		uint8_t byte;
	};
	std::vector<Step> add_texts(const Vocab&);
	void link(const std::vector<Step>&);
	uint32_t step(uint32_t node, uint8_t c) const;

	std::vector<Node> nodes_ = std::vector<Node>(1); // node 0 is the empty text
	std::array<uint32_t, 256> roots_{};              // nodes of one byte, or 0
	PairTable<uint32_t> edges_;                      // (node, byte) -> node
	size_t longest_ = 0;                             // bytes of the longest token
	bool any_ = false, user_ = false;                // there are tokens, user-defined tokens
};

} // namespace kvrun
