// Scalar quantise / dequantise of one group, and packed codes: the definition everything is tested against.
#include "engine/kv/quant.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

Params quantise(std::span<const float> x, uint32_t bits, Relax relax, std::span<uint8_t> codes) {
	KV_ASSERT(bits >= 1 && bits <= 8 && !x.empty() && codes.size() == x.size());
	const float top = float((1u << bits) - 1u);
	const auto [lo, hi] = std::minmax_element(x.begin(), x.end());
	const float scale = round_f16((*hi - *lo) / top), zero = round_f16(*lo);
	for (size_t i = 0; i < x.size(); ++i) {
		const float code = scale > 0 ? std::nearbyint((x[i] - zero) / scale) : 0.f;
		codes[i] = uint8_t(std::clamp(code, 0.f, top));
	}
	// Codes belong to the plain end points; only what they mean moves inwards.
	return {f32_to_f16(relax.shrink * scale), f32_to_f16(zero + relax.shift * scale * top)};
}

float dequantise(uint32_t code, Params p) { return float(code) * f16_to_f32(p.scale) + f16_to_f32(p.zero); }

uint32_t unpack(std::span<const uint32_t> words, uint32_t bits, size_t i) {
	const size_t per_word = 32 / bits;
	return words[i / per_word] >> (i % per_word * bits) & ((1u << bits) - 1u);
}

void pack(std::span<uint32_t> words, uint32_t bits, size_t i, uint32_t code) {
	const size_t per_word = 32 / bits, shift = i % per_word * bits;
	const uint32_t mask = ((1u << bits) - 1u) << shift;
	uint32_t& w = words[i / per_word];
	w = (w & ~mask) | (code << shift & mask);
}

uint16_t channel_factor(std::span<const float> x) {
	float m = 0;
	for (float v : x) m = std::max(m, std::fabs(v));
	const uint16_t c = f32_to_f16(std::sqrt(m));
	return c ? c : 0x3c00;
}

uint16_t balance_factor(float max_abs_q, float max_abs_k) {
	if (!(max_abs_k > 0)) return 0x3c00; // a channel without keys: any factor serves, and none may be infinite
	const uint16_t b = std::min<uint16_t>(f32_to_f16(std::sqrt(max_abs_q / std::max(max_abs_k, 1e-12f))), 0x7bff);
	return b ? b : 0x3c00;
}

} // namespace kvrun
