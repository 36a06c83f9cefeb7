// Speculation: tokens that an answer is likely to go on with. One decode step computes the logits of several of them,
// and those that turn out to be the tokens that the sampler chooses need no step of their own.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvrun {

// Says what one answer may go on with. What it says changes how long an answer takes, and nothing else.
class Drafter {
 public:
	virtual ~Drafter() = default;
	// The tokens that come next, of the history, the prompt, or the answer.
	virtual void accept(std::span<const uint32_t> tokens) = 0;
	// At most `most` tokens that may come behind all that was accepted; valid until the next call.
	virtual std::span<const uint32_t> draft(uint32_t most) = 0;
};

// How many tokens to draft: more while they are accepted, and none for longer and longer while they are not, so that an
// answer that cannot be guessed costs next to nothing.
class DraftLength {
 public:
	explicit DraftLength(uint32_t most) : most_(most), length_(std::min(most, kFirst)) {}
	uint32_t next() { // of the next step
		if (!resting_) return length_;
		--resting_;
		return 0;
	}
	void verified(uint32_t drafted, uint32_t accepted) {
		length_ = accepted == drafted ? std::min(most_, 2 * length_) : std::clamp(accepted, 1u, most_);
		rest_ = accepted ? 0 : std::clamp(2 * rest_, 1u, kLongestRest);
		resting_ = rest_;
	}

 private:
	static constexpr uint32_t kFirst = 1;        // tokens: a second row costs least
	static constexpr uint32_t kLongestRest = 64; // steps
	uint32_t most_, length_;
	uint32_t rest_ = 0, resting_ = 0; // steps without drafts: the latest break, and what is left of it
};

struct DraftStats {
	uint64_t drafted = 0, accepted = 0; // tokens
};

} // namespace kvrun
