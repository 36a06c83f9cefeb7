// Adaptive-p (llama.cpp 17927): tokens near a target probability become the likeliest, and the target of each token
// makes up for the probabilities of those before.
#pragma once
#include "engine/run/sampler_cuts.h"
#include <vector>

namespace kvrun {

struct AdaptiveOptions {
	double target = -1; // probability, 0 to 1; < 0: off
	double decay = 0.9; // 0 to 0.99: weight of the tokens before, which is about 1 / (1 - decay) of them
};

class AdaptiveP {
 public:
	explicit AdaptiveP(const AdaptiveOptions& o) : options_(o), mean_(o.target) {}
	bool on() const { return options_.target >= 0; }
	// Replaces the shares, whose sum is `total`, and returns the sum of the new ones. With p the probability before and
	// d = |p - target| / 0.3, a share is exp(-10 d^2 / (1 + d)).
	double reshape(std::vector<Candidate>&, double total);
	void observe(size_t chosen); // index in the list that was reshaped last

 private:
	AdaptiveOptions options_;
	double mean_;                // exponential, of probabilities of chosen tokens
	std::vector<double> before_; // probabilities before reshape()
};

} // namespace kvrun
