// A drafter that looks up the latest tokens in the text itself: what followed them last time may follow again.
#pragma once
#include "engine/run/draft.h"
#include <array>

namespace kvrun {

class LookupDrafter final : public Drafter {
 public:
	void accept(std::span<const uint32_t> tokens) override;
	// Returns what followed the latest earlier occurrence of the longest suffix, of kLongest down to kShortest tokens.
	// If that reaches the text's end, it continues with its own drafts, so that a loop is drafted
	// completely.
	std::span<const uint32_t> draft(uint32_t most) override;

 private:
	static constexpr uint32_t kLongest = 4, kShortest = 2; // tokens of a suffix
	void add(uint32_t token);
	uint32_t& place(uint32_t n, size_t end); // table entry of the n tokens before position `end`
	bool same(uint32_t n, size_t a, size_t b) const;
	void grow();

	std::vector<uint32_t> text_, drafted_;
	// End of the latest occurrence of a run of tokens, by its hash; 0 if it does not occur. A run whose places are all
	// taken replaces another run, which is forgotten; so the cost per token does not depend on the text.
	std::vector<uint32_t> ends_;
	std::array<size_t, kLongest + 1>
	    match_{}; // by n: end of the occurrence of the latest n tokens before them; 0 if none
};

} // namespace kvrun
