// RoPE frequencies after context extension.
#include "models/config.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrun {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Llama 3.1: wavelengths beyond original_ctx / low_freq are multiplied by factor, those below original_ctx / high_freq
// stay; between, both are blended by the number of turns in original_ctx.
double llama3(const Rope& r, double freq) {
	const double turns = r.original_ctx * freq / kTurn;
	const double keep = std::clamp((turns - r.low_freq) / (double(r.high_freq) - r.low_freq), 0., 1.);
	return keep * freq + (1 - keep) * freq / r.factor;
}

// YaRN, arXiv:2309.00071: pair i = pair_at(n) turns n times in original_ctx. The ramp is linear between the pairs that
// turn beta_fast and beta_slow times; these bounds are usually rounded outwards.
double yarn(const Rope& r, double freq, uint32_t pair) {
	auto pair_at = [&](double turns) {
		return r.dim * std::log(r.original_ctx / (turns * kTurn)) / (2 * std::log(double(r.theta)));
	};
	const double first = pair_at(r.beta_fast), last = pair_at(r.beta_slow);
	const double low = std::max(0., r.ramp_rounded ? std::floor(first) : first);
	const double high = std::min(r.dim - 1., r.ramp_rounded ? std::ceil(last) : last);
	const double keep = 1 - std::clamp((pair - low) / std::max(0.001, high - low), 0., 1.);
	return keep * freq + (1 - keep) * freq / r.factor;
}

} // namespace

const char* rope_scaling_name(RopeScaling s) {
	constexpr const char* names[] = {"none", "linear", "llama3", "yarn", "longrope"};
	return names[size_t(s)];
}

std::vector<float> rope_inv_freq(const Rope& r, uint32_t ctx) {
	if (!r.rotates) return std::vector<float>(r.dim / 2, 0.f);
	const std::vector<float>& per_pair =
	    r.scaling == RopeScaling::LongRope ? (ctx > r.original_ctx ? r.long_freqs : r.short_freqs) : r.freqs;
	std::vector<float> out(r.dim / 2);
	for (uint32_t i = 0; i < out.size(); ++i) {
		double f = std::pow(double(r.theta), -2. * i / r.dim);
		if (r.scaling == RopeScaling::Linear) f /= r.factor;
		if (r.scaling == RopeScaling::Llama3) f = llama3(r, f);
		if (r.scaling == RopeScaling::Yarn) f = yarn(r, f, i);
		if (!per_pair.empty()) f /= per_pair[i];
		out[i] = float(f);
	}
	return out;
}

float rope_attention_scale(const Rope& r) {
	if (!r.rotates) return 1;
	if (r.scaling == RopeScaling::Yarn && r.factor > 1)
		return float(r.attn_factor * (1 + 0.1 * std::log(double(r.factor))));
	return r.attn_factor;
}

} // namespace kvrun
