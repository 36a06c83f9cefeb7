// DRY ("don't repeat yourself") sampling: tokens that would lengthen a repetition become less likely, by an amount that
// grows exponentially with its length (p-e-w, text-generation-webui 5677).
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvrun {

struct DryOptions {
	double multiplier = 0;                                      // 0: off
	double base = 1.75;                                         // of the exponential
	uint32_t allowed = 2;                                       // tokens that may repeat without a penalty
	uint32_t last = UINT32_MAX;                                 // tokens in which repetitions are looked for; 0: off
	std::vector<std::string> breakers = {"\n", ":", "\"", "*"}; // texts at which a repetition ends
	bool on() const { return multiplier != 0 && last != 0; }
};

class Dry {
 public:
	using TokenText = std::function<std::string(uint32_t)>; // empty: tokens have no text, and nothing ends a repetition

	explicit Dry(DryOptions = {}, TokenText = {});
	bool on() const { return options_.on(); }
	void accept(uint32_t token); // a token of the prompt or the answer
	// Where the newest `n` tokens, none of which has a breaker, also stand earlier, followed by token t, the logit of t
	// falls by multiplier * base^(n - allowed), for the largest such n if it is at least `allowed`. Tokens with a
	// breaker keep theirs. logits (vocab).
	void penalise(std::span<float> logits);

 private:
	bool breaks(const std::string& before, const std::string& text) const;
	DryOptions options_;
	TokenText text_;
	std::vector<uint32_t> tokens_;                   // accepted ones; at most twice `last`
	uint32_t unbroken_ = 0;                          // newest tokens behind the last breaker
	std::string before_;                             // end of the text, as long as a breaker may have begun there
	size_t most_before_ = 0;                         // its most bytes
	std::vector<uint32_t> repeats_;                  // (tokens looked at) as in penalise()
	std::unordered_map<uint32_t, uint32_t> longest_; // repetition that a token would lengthen
};

} // namespace kvrun
