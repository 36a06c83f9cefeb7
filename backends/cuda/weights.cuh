// Weight rows -> floats, 16 elements at a time: shaders/shared/weight_row.h read by one thread.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/weight_codes.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

constexpr uint32_t kUnit = 16; // elements

struct WeightRow { // the parts of one row
	WeightTraits traits;
	const uint4 *codes, *high, *scales, *factors; // pieces of 16 bytes
};

__device__ inline WeightRow weight_row(const Weight& w, uint32_t row) {
	const WeightTraits& t = w.traits;
	const uint4* at = static_cast<const uint4*>(w.rows) + uint64_t(row) * weight_row_pieces(t, w.cols);
	return {t, at, at + weight_high_at(t, w.cols), at + weight_scales_at(t, w.cols), at + weight_factors_at(t, w.cols)};
}

__device__ inline uint32_t word_of(const uint4* pieces, uint32_t i) {
	return reinterpret_cast<const uint32_t*>(pieces)[i];
}
__device__ inline float half_of(const uint4* pieces, uint32_t i) {
	return half_at(reinterpret_cast<const uint32_t*>(pieces), i);
}
__device__ inline int signed_byte(const uint4* pieces, uint32_t i) {
	return int(word_of(pieces, i / 4) << (24 - i % 4 * 8)) >> 24;
}

struct UnitScale {
	float scale, min;
};
__device__ inline UnitScale unit_scale(const WeightRow& w, uint32_t unit) {
	switch (w.traits.scale) {
	case SCALE_HALF_MIN: {
		const uint32_t word = word_of(w.scales, unit / 2);
		return {low_half(word), -high_half(word)};
	}
	case SCALE_K: {
		const uint4& head = w.scales[unit / 16];
		const uint32_t run = unit / 2 % 8;
		return {low_half(head.x) * float(weight_k_scale(head.y, head.w, run)),
		        high_half(head.x) * float(weight_k_min(head.z, head.w, run))};
	}
	case SCALE_BYTE: return {half_of(w.factors, unit / 16) * float(signed_byte(w.scales, unit)), 0};
	default: return {half_of(w.scales, unit / 2), 0}; // SCALE_HALF
	}
}

// Codes of elements 4i .. 4i + 3 of a unit of quantised weights, as signed bytes: less zero.
__device__ inline uint32_t code_bytes(const WeightRow& w, uint32_t unit, uint32_t i) {
	if (w.traits.codes == CODE_BYTE) return word_of(w.codes, unit * 4 + i);
	uint32_t code = weight_nibbles(word_of(w.codes, unit * 2), word_of(w.codes, unit * 2 + 1), i);
	if (w.traits.high == 4) code |= weight_high_bit(word_of(w.high, unit / 2) >> unit % 2 * 4, i, 4);
	if (w.traits.high == 8) code |= weight_high_bits(word_of(w.high, unit), i, 4);
	return w.traits.zero ? weight_centred(code, w.traits.zero) : code;
}

// Elements [16 * unit, 16 * unit + 16) of a row; past the end of a row of plain floats they are zero.
__device__ inline void weight_unit(const WeightRow& w, uint32_t unit, float* e) {
	switch (w.traits.codes) {
	case CODE_F32:
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = __int_as_float(int(word_of(w.codes, unit * kUnit + i)));
		return;
	case CODE_F16:
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = half_of(w.codes, unit * kUnit + i);
		return;
	case CODE_BF16:
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t word = word_of(w.codes, unit * kUnit / 2 + i / 2);
			e[i] = __int_as_float(int(i % 2 ? word & 0xffff0000u : word << 16));
		}
		return;
	}
	const UnitScale s = unit_scale(w, unit);
	for (uint32_t i = 0; i < kUnit; i += 4) {
		const uint32_t code = code_bytes(w, unit, i / 4);
		for (uint32_t c = 0; c < 4; ++c) {
			const float x = float(int(code << (24 - 8 * c)) >> 24);
			e[i + c] = s.scale * x - s.min;
		}
	}
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
