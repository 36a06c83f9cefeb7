// A drafter that looks the latest tokens up in the text itself: what came behind them last time may come again.
#pragma once
#include "engine/run/draft.h"
#include <array>

namespace kvrun {

class LookupDrafter final : public Drafter {
 public:
	void accept(std::span<const uint32_t> tokens) override;
	// What followed the latest occurrence of the longest suffix that occurred before, of kLongest tokens down to
	// kShortest. Where that runs into the text's end it goes on with what it has drafted, so that a loop is drafted
	// whole.
	std::span<const uint32_t> draft(uint32_t most) override;

 private:
	static constexpr uint32_t kLongest = 4, kShortest = 2; // tokens of a suffix
	void add(uint32_t token);
	uint32_t& place(uint32_t n, size_t end); // in the table, of the n tokens before position `end`
	bool same(uint32_t n, size_t a, size_t b) const;
	void grow();

	std::vector<uint32_t> text_, drafted_;
	// Where the latest occurrence of a run of tokens ends, by its hash; 0: nowhere. A run that finds its places taken
	// takes one: an occurrence is forgotten then, and a token costs the same whatever the text is.
	std::vector<uint32_t> ends_;
	std::array<size_t, kLongest + 1>
	    match_{}; // by n: end of the occurrence of the latest n tokens before them; 0: none
};

} // namespace kvrun
