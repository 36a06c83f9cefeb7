// Models whose keys have outlier channels: rotation spreads these over the head, and codebooks lose the rest of the
// key.
#include "engine/run/key_outliers.h"
#include "engine/core/block_quant.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// Keys without biases have channels of about 1 to 4. Qwen2.5-Coder-0.5B has biases of up to 211: turbo4 costs 0.085
// nats there, and 0.0025 with keys per channel (tools/BENCHMARKS.md). Between these, nothing was measured.
constexpr float kLargeBias = 16;
// Gemma 3 270M has norms with peaks of 2.3 to 9.4: turbo2 costs 0.132 nats there, and 0.049 with keys per channel; each
// layer of full attention gains, that of the lowest peak too. SmolLM2, without norms, loses (tools/BENCHMARKS.md).
constexpr float kPeak = 2;

// Calls use(values) for each tensor blk.N.`name`.
template <class F> void each_layer(const Gguf& g, std::string_view name, F use) {
	for (const GgufTensor& t : g.tensors()) {
		if (!t.name.ends_with(name)) continue;
		std::vector<std::byte> bytes(t.bytes);
		g.read(t, 0, bytes);
		std::vector<float> values(t.cols());
		dequantise_row(t.type, bytes.data(), values.data(), values.size());
		use(values);
	}
}

float largest(const std::vector<float>& values) {
	float most = 0;
	for (const float v : values)
		if (std::isfinite(v)) most = std::max(most, std::abs(v));
	return most;
}

} // namespace

float largest_key_bias(const Gguf& g) {
	float most = 0;
	each_layer(g, ".attn_k.bias", [&](const std::vector<float>& b) { most = std::max(most, largest(b)); });
	return most;
}

float peak_of_key_norms(const Gguf& g) {
	float most = 0;
	each_layer(g, ".attn_k_norm.weight", [&](const std::vector<float>& w) {
		double squares = 0;
		for (const float v : w) squares += double(v) * v;
		const double rms = std::sqrt(squares / double(w.size()));
		if (rms > 0 && std::isfinite(rms)) most = std::max(most, float(largest(w) / rms));
	});
	return most;
}

Choice suit_to_keys(const KvPolicy& p, const Gguf& g) {
	const Quant& k = p.regular.k;
	if (k.scale != Scale::Codebook || k.bits < 1 || k.bits > 4 || p.text.find("scale") != p.text.npos) return {p, {}};
	const float bias = largest_key_bias(g), peak = peak_of_key_norms(g);
	std::string why;
	if (bias >= kLargeBias)
		why = fmt::format("this model's keys have biases of up to {:.0f}", bias);
	else if (peak >= kPeak)
		why = fmt::format("the norm of this model's keys has weights of up to {:.1f} times their mean", peak);
	else
		return {p, {}};
	return {parse_policy(p.text + ",k.scale=channel"),
	        fmt::format("keys per channel, because {} (k.scale=codebook rotates them)", why)};
}

} // namespace kvrun
