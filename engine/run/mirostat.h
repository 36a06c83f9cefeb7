// Mirostat (arXiv:2007.14966): the surprise of the tokens of an answer, -log2 of their probability, stays near a
// target.
#pragma once
#include "engine/run/sampler_cuts.h"
#include <cstdint>
#include <span>

namespace kvrun {

struct MirostatOptions {
	uint32_t version = 0; // 1 or 2; 0: off
	double target = 5;    // mean surprise, in bits
	double rate = 0.1;    // by how much of a token's distance from the target the limit moves
};

// The limit of surprise begins at twice the target; each token moves it.
class Mirostat {
 public:
	explicit Mirostat(const MirostatOptions& o) : options_(o), limit_(2 * o.target) {}
	bool on() const { return options_.version != 0; }
	// Version 1 needs the exponent of Zipf's law, which it estimates from so many likeliest tokens.
	bool by_rank() const { return options_.version == 1; }
	static constexpr size_t kRanked = 100;
	// Version 1: how many tokens may be chosen. log_probable: natural logarithms of the probabilities of the likeliest
	// tokens, in order, not more than kRanked of them.
	size_t ranks(std::span<const double> log_probable, size_t n_vocab) const;
	// Version 2: the natural logarithm of the least probability that a token may have. The likeliest may be chosen in
	// any case.
	double least_log() const;
	void observe(double probability); // of the chosen token, among those that could be chosen

 private:
	MirostatOptions options_;
	double limit_; // mu
};

} // namespace kvrun
