#include "engine/run/adaptive_p.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

double AdaptiveP::reshape(std::vector<Candidate>& candidates, double total) {
	constexpr double kWidth = 0.3, kSharpness = 10;
	const double target = std::clamp(2 * options_.target - mean_, 0., 1.);
	before_.clear();
	double sum = 0;
	for (Candidate& c : candidates) {
		before_.push_back(c.share / total);
		const double d = std::abs(before_.back() - target) / kWidth;
		sum += c.share = std::exp(-kSharpness * d * d / (1 + d));
	}
	return sum;
}

void AdaptiveP::observe(size_t chosen) { mean_ = (1 - options_.decay) * before_[chosen] + options_.decay * mean_; }

} // namespace kvrun
