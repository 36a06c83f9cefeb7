// Building the trie from sorted texts: the tokens below a node are a range of them.
#include "models/piece_trie.h"

namespace kvrun {

PieceTrie::PieceTrie(std::vector<Piece> pieces) {
	struct Range {
		uint32_t begin, end;
	};
	std::sort(pieces.begin(), pieces.end());
	const auto same_text = [](const Piece& a, const Piece& b) { return a.text == b.text; };
	pieces.erase(std::unique(pieces.begin(), pieces.end(), same_text), pieces.end());
	std::vector<Range> level = {{0, uint32_t(pieces.size())}}, below; // the nodes of one depth
	const auto add_node = [&](uint8_t byte) {
		bytes_.push_back(byte);
		ids_.push_back(kNone);
	};
	add_node(0); // the empty text
	for (size_t depth = 0; !level.empty(); ++depth, level.swap(below), below.clear()) {
		for (Range r : level) {
			const size_t node = first_.size();
			first_.push_back(uint32_t(bytes_.size()));
			if (r.begin < r.end && pieces[r.begin].text.size() == depth) ids_[node] = pieces[r.begin++].id;
			while (r.begin < r.end) {
				const char byte = pieces[r.begin].text[depth];
				const uint32_t begin = r.begin;
				while (r.begin < r.end && pieces[r.begin].text[depth] == byte) ++r.begin;
				add_node(uint8_t(byte));
				below.push_back({begin, r.begin});
			}
		}
	}
	first_.push_back(uint32_t(bytes_.size()));
}

} // namespace kvrun
