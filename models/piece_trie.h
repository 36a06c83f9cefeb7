// Trie of the texts of tokens: one walk over the bytes of a text finds all tokens that begin there.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvrun {

class PieceTrie {
 public:
	struct Piece {
		std::string_view text;
		uint32_t id;
		auto operator<=>(const Piece&) const = default;
	};
	// Of equal texts the lowest id counts; an empty text is never found. At most 2^32 - 2 bytes.
	explicit PieceTrie(std::vector<Piece>);

	// Calls f(bytes, id) for each token that `text` begins with, the shortest first.
	template <class F> void each_prefix(std::string_view text, F&& f) const {
		uint32_t node = 0;
		for (size_t n = 0; n < text.size(); ++n) {
			const auto begin = bytes_.begin() + first_[node], end = bytes_.begin() + first_[node + 1];
			const auto child = std::lower_bound(begin, end, uint8_t(text[n]));
			if (child == end || *child != uint8_t(text[n])) return;
			node = uint32_t(child - bytes_.begin());
			if (ids_[node] != kNone) f(n + 1, ids_[node]);
		}
	}

 private:
	static constexpr uint32_t kNone = UINT32_MAX;
	// Nodes in order of depth, so that the children of each node are neighbours and follow those of the node before it.
	std::vector<uint8_t> bytes_;  // (nodes) last byte of its text; ascending among the children of a node
	std::vector<uint32_t> ids_;   // (nodes) the token with this text, or kNone
	std::vector<uint32_t> first_; // (nodes + 1) the first child; its children end where those of the next node begin
};

} // namespace kvrun
