// Distributions of the next token, and the KL divergence between them.
#include "tools/eval/log_softmax.h"
#include "engine/core/error.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

uint32_t log_softmax(std::span<const float> logits, std::span<float> out, const std::string& policy) {
	const size_t best = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
	const double top = logits[best];
	double sum = 0;
	for (const float x : logits) sum += std::exp(double(x) - top);
	if (!std::isfinite(sum) || !std::isfinite(top))
		fail(Code::Device, "the logits under policy '{}' are not finite; run again with --check to find the operation",
		     policy);
	const double log_sum = top + std::log(sum);
	for (size_t i = 0; i < logits.size(); ++i) out[i] = float(double(logits[i]) - log_sum);
	return uint32_t(best);
}

double kl_divergence(std::span<const float> p, std::span<const float> q) { // of log-probabilities
	double sum = 0;
	for (size_t i = 0; i < p.size(); ++i) sum += std::exp(double(p[i])) * (double(p[i]) - double(q[i]));
	return std::max(sum, 0.0); // rounding can make it slightly negative
}

} // namespace kvrun
