// Weight rows -> floats, 16 elements at a time: shaders/shared/weight_row.h read by one thread.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/weight_row.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

constexpr uint32_t kUnit = 16; // elements

struct WeightRow { // the parts of one row
	uint32_t type;
	const uint4 *codes, *high, *scales, *factors; // pieces of 16 bytes
};

__device__ inline WeightRow weight_row(const Weight& w, uint32_t row) {
	const uint4* at = static_cast<const uint4*>(w.rows) + uint64_t(row) * weight_row_pieces(w.type, w.cols);
	return {w.type, at, at + weight_high_at(w.type, w.cols), at + weight_scales_at(w.type, w.cols),
	        at + weight_factors_at(w.type, w.cols)};
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

// Code of element e of a unit in a format of 4 bits or more: its low nibble.
__device__ inline uint32_t nibble(const uint4* codes, uint32_t unit, uint32_t e) {
	const uint32_t half = e / 8, byte = e % 8; // bytes 4w + c hold elements 4w + c and 8 + 4w + c
	return word_of(codes, unit * 2 + byte / 4) >> (byte % 4 * 8 + half * 4) & 15u;
}

// Six-bit scale and min of run r (of 8) of a Q4_K or Q5_K block of 256.
struct ScaleMin {
	float scale, min;
};
__device__ inline ScaleMin k_scale(const uint4& header, uint32_t r) {
	const uint32_t scale = (header.y >> 4 * r & 15u) | (header.w >> 2 * r & 3u) << 4;
	const uint32_t min = (header.z >> 4 * r & 15u) | (header.w >> (16 + 2 * r) & 3u) << 4;
	return {low_half(header.x) * float(scale), high_half(header.x) * float(min)};
}

// Elements [16 * unit, 16 * unit + 16) of a row; past the end of a row of plain floats they are zero.
__device__ inline void weight_unit(const WeightRow& w, uint32_t unit, float* e) {
	if (w.type == W_F32) {
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = __int_as_float(int(word_of(w.codes, unit * kUnit + i)));
	} else if (w.type == W_F16) {
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = half_of(w.codes, unit * kUnit + i);
	} else if (w.type == W_BF16) {
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t word = word_of(w.codes, unit * kUnit / 2 + i / 2);
			e[i] = __int_as_float(int(i % 2 ? word & 0xffff0000u : word << 16));
		}
	} else if (w.type == W_Q8_0) {
		const float d = half_of(w.scales, unit / 2);
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = d * float(signed_byte(w.codes, unit * kUnit + i));
	} else if (w.type == W_Q4_0) {
		const float d = half_of(w.scales, unit / 2);
		for (uint32_t i = 0; i < kUnit; ++i) e[i] = d * float(int(nibble(w.codes, unit, i)) - 8);
	} else if (w.type == W_Q6_K) {
		const float d = half_of(w.factors, unit / 16) * float(signed_byte(w.scales, unit));
		const uint32_t high = word_of(w.high, unit); // element 4s + c at bits 8c + 2s
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t code = nibble(w.codes, unit, i) | (high >> (i % 4 * 8 + i / 4 * 2) & 3u) << 4;
			e[i] = d * float(int(code) - 32);
		}
	} else { // Q4_K, Q5_K
		const ScaleMin s = k_scale(w.scales[unit / 16], unit / 2 % 8);
		// element 4s + c of a run of 32 at bit 8c + s
		const uint32_t high = w.type == W_Q5_K ? word_of(w.high, unit / 2) >> unit % 2 * 4 : 0u;
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t code = nibble(w.codes, unit, i) | (high >> (i % 4 * 8 + i / 4) & 1u) << 4;
			e[i] = s.scale * float(code) - s.min;
		}
	}
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
