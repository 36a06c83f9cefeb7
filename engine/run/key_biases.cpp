// Models with large biases of keys: rotation spreads them over the head, and codebooks lose the rest of the key.
#include "engine/run/key_biases.h"
#include "engine/core/block_quant.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

// Keys without biases have channels of about 1 to 4. Qwen2.5-Coder-0.5B has biases of up to 211: turbo4 costs 0.085
// nats there, and 0.0025 with keys per channel (tools/BENCHMARKS.md). Between these, nothing was measured.
static constexpr float kLargeBias = 16;

float largest_key_bias(const Gguf& g) {
	float most = 0;
	for (const GgufTensor& t : g.tensors()) {
		if (!t.name.ends_with(".attn_k.bias")) continue;
		std::vector<std::byte> bytes(t.bytes);
		g.read(t, 0, bytes);
		std::vector<float> values(t.cols());
		dequantise_row(t.type, bytes.data(), values.data(), values.size());
		for (const float v : values)
			if (std::isfinite(v)) most = std::max(most, std::abs(v));
	}
	return most;
}

Choice suit_to_keys(const KvPolicy& p, const Gguf& g) {
	const Quant& k = p.regular.k;
	if (k.scale != Scale::Codebook || k.bits < 1 || k.bits > 4 || p.text.find("scale") != p.text.npos) return {p, {}};
	const float bias = largest_key_bias(g);
	if (bias < kLargeBias) return {p, {}};
	return {parse_policy(p.text + ",k.scale=channel"),
	        fmt::format("keys per channel, because this model's keys have biases of up to {:.0f} (k.scale=codebook "
	                    "rotates them)",
	                    bias)};
}

} // namespace kvrun
