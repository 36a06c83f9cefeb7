// Keys and values of one kv head, read token by token: pages of any format, and f16 rows outside of pages.
// x = scale * code + zero, times V's channel factor; codes and parameters lie as shaders/shared/kv_page.h says.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/kv_page.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

__device__ inline bool is_live(const uint32_t* bits, uint32_t t) { return bits[t / 32] >> t % 32 & 1u; }

__device__ inline float decoded(uint32_t code, uint32_t param) {
	return float(code) * low_half(param) + high_half(param);
}

struct PageKeys { // of one kv head
	const uint32_t *codes, *params;
	CodeSide side;
	uint32_t head, head_dim, page;

	// f(channel, value) for every channel of token t, in order.
	template <class F> __device__ void each(uint32_t t, F f) const {
		if (side.bits == 16) {
			for (uint32_t w = 0; w < head_dim / 2; ++w) {
				const uint32_t pair = codes[kv_k_word(head, w, t, head_dim, 16, page)];
				f(2 * w, low_half(pair));
				f(2 * w + 1, high_half(pair));
			}
			return;
		}
		const uint32_t per_word = 32 / side.bits, mask = (1u << side.bits) - 1;
		uint32_t word = 0, param = 0;
		for (uint32_t c = 0; c < head_dim; ++c) {
			if (c % per_word == 0) word = codes[kv_k_word(head, c / per_word, t, head_dim, side.bits, page)];
			if (side.per_channel)
				param = params[kv_channel_param(head, c, head_dim)];
			else if (c == 0 || (head * head_dim + c) % side.group == 0)
				param = params[kv_token_param(head, c, t, head_dim, side.group, page)];
			f(c, decoded(word >> c % per_word * side.bits & mask, param));
		}
	}
};

struct PageValues {
	const uint32_t *codes, *params, *factors; // factors: null without
	CodeSide side;
	uint32_t head, head_dim, page;

	__device__ float at(uint32_t t, uint32_t c) const {
		if (side.bits == 16) {
			const uint32_t pair = codes[kv_v_word(head, t, c / 2, head_dim, 16, page)];
			return c % 2 ? high_half(pair) : low_half(pair);
		}
		const uint32_t per_word = 32 / side.bits, mask = (1u << side.bits) - 1;
		const uint32_t word = codes[kv_v_word(head, t, c / per_word, head_dim, side.bits, page)];
		const float x = decoded(word >> c % per_word * side.bits & mask,
		                        params[kv_token_param(head, c, t, head_dim, side.group, page)]);
		if (!factors) return x;
		const uint32_t pair = factors[kv_factor_word(head, c, head_dim)];
		return x * (kv_factor_half(head, c, head_dim) ? high_half(pair) : low_half(pair));
	}
};

// (t_cap, head_dim) halves of one kv head.
struct RowKeys {
	const uint32_t* words;
	uint32_t first, head_dim; // token 0 is row `first`
	template <class F> __device__ void each(uint32_t t, F f) const {
		for (uint32_t w = 0; w < head_dim / 2; ++w) {
			const uint32_t pair = words[uint64_t(first + t) * (head_dim / 2) + w];
			f(2 * w, low_half(pair));
			f(2 * w + 1, high_half(pair));
		}
	}
};
struct RowValues {
	const uint32_t* words;
	uint32_t first, head_dim;
	__device__ float at(uint32_t t, uint32_t c) const { return half_at(words, uint64_t(first + t) * head_dim + c); }
};

// ---- scores. Products are added in the same 16 lanes as in the cpu backend.

constexpr uint32_t kLanes = 16;

template <class Keys> __device__ inline float dot(const float* q, const Keys& keys, uint32_t t) {
	float lane[kLanes] = {};
	keys.each(t, [&](uint32_t c, float x) {
#pragma unroll
		for (uint32_t i = 0; i < kLanes; ++i) // indices of registers are constants
			if (c % kLanes == i) lane[i] += q[c] * x;
	});
#pragma unroll
	for (uint32_t half = kLanes / 2; half; half /= 2)
#pragma unroll
		for (uint32_t i = 0; i < half; ++i) lane[i] += lane[i + half];
	return lane[0];
}

// What token t receives from the query heads of one kv head of one row, on average.
template <class Keys>
__device__ inline float received(const float* q, const float* lse, uint32_t share, uint32_t D, float scale,
                                 const Keys& keys, uint32_t t) {
	float sum = 0;
	for (uint32_t j = 0; j < share; ++j) sum += expf(scale * dot(q + uint64_t(j) * D, keys, t) - lse[j]);
	return 1 / float(share) * sum;
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
