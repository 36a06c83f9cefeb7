// Speculation: tokens that are likely to continue an answer. One decode step computes the logits of several of them;
// those that the sampler then chooses need no step of their own.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvrun {

class Drafter;

struct DraftRequest {
	Drafter* drafter;
	uint32_t most;                     // tokens
	std::vector<uint32_t> tokens = {}; // result: as of Drafter::draft()
};

// Drafters that guess together, which takes fewer passes over weights than one after the other.
class DraftGroup {
 public:
	virtual ~DraftGroup() = default;
	virtual void draft(std::span<DraftRequest>) = 0; // of drafters of this group
};

// Guesses how one answer continues. The guesses change only how long the answer takes.
class Drafter {
 public:
	virtual ~Drafter() = default;
	// Adds the next tokens of the history, the prompt, or the answer.
	virtual void accept(std::span<const uint32_t> tokens) = 0;
	// At most `most` tokens that may follow all accepted tokens; valid until the next call.
	virtual std::span<const uint32_t> draft(uint32_t most) = 0;
	virtual DraftGroup* group() { return nullptr; } // null: it guesses alone
	// Whether it reads the model's hidden states: then states() gets those of each token, which was accepted before,
	// once the model has read it: rows (n, width) of the residual stream at Engine::state_layers(), side by side, of
	// consecutive positions.
	virtual bool reads_states() const { return false; }
	virtual uint32_t prompt_states() const { return 0; } // of so many of the prompt's last tokens, too
	virtual void states(uint32_t /*position*/, std::span<const float> /*rows*/) {}
	virtual void work() {} // between pieces of the prompt and before steps: reads some of the states that came
};

// How many tokens to draft: more while they are accepted; while they are not, none for longer and longer rests, so that
// an answer that cannot be guessed costs almost nothing.
class DraftLength {
 public:
	explicit DraftLength(uint32_t most) : most_(most), length_(std::min(most, kFirst)) {}
	uint32_t next() { // number of drafts of the next step
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
	uint32_t rest_ = 0, resting_ = 0; // steps without drafts: length of the latest rest, and steps left of it
};

struct DraftStats {
	uint64_t drafted = 0, accepted = 0; // tokens
};

} // namespace kvrun
