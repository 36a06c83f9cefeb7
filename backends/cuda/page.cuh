// Keys and values of one kv head, read token by token: pages of any format, and f16 rows outside of pages.
// x = scale * code + zero, times V's channel factor. shaders/shared/kv_page.h has the layout of codes and parameters.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/kv_page.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

__device__ inline bool is_live(const uint32_t* bits, uint32_t t) { return bits[t / 32] >> t % 32 & 1u; }

struct Group { // (scale, zero) of codes
	float scale, zero;
};
// From a pair of bytes in the low half of a word; `largest`: the word of the largest (scale, |zero|).
__device__ inline Group byte_group(uint32_t bytes, uint32_t largest) {
	return {float(bytes & 0xffu) * kv_255th(low_half(largest)),
	        (float(bytes >> 8 & 0xffu) - 128.f) * kv_127th(high_half(largest))};
}

__device__ inline float book_value(uint32_t code, uint32_t bits) {
	const float u = float(code) - kv_codebook_middle(bits);
	return u * (kv_codebook_linear(bits) + kv_codebook_cubic(bits) * (u * u));
}

// Rotates the first n rows of y in shared memory, `stride` apart, or inverts the rotation. Called by a whole block.
template <class Rows> __device__ inline void rotate_rows(Rows& y, uint32_t n, uint32_t stride, uint32_t D, bool back) {
	const uint32_t block = kv_rotation_block(D);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n * D && !back; i += blockDim.x)
		if (kv_sign(i % D)) y[i / D * stride + i % D] = -y[i / D * stride + i % D];
	for (uint32_t step = 1; step < block; step *= 2) {
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < n * (D / 2); i += blockDim.x) {
			const uint32_t pair = i % (D / 2), at = i / (D / 2) * stride + pair / step * 2 * step + pair % step;
			const float a = y[at], b = y[at + step];
			y[at] = a + b, y[at + step] = a - b;
		}
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
		const float x = y[i / D * stride + i % D] * kv_rotation_scale(block);
		y[i / D * stride + i % D] = back && kv_sign(i % D) ? -x : x;
	}
	__syncthreads();
}

struct PageSide { // keys or values of one kv head
	const uint32_t *codes, *params;
	CodeSide side;
	uint32_t head, head_dim, page, n_kv_heads;

	// Code of channel c of a token whose words are codes[word(0)], codes[word(1)], ...
	template <class Word> __device__ uint32_t code(uint32_t c, Word word) const {
		if (side.bits == 3)
			return (codes[word(c / 16)] >> c % 16 * 2 & 3u) |
			       (codes[word(kv_token_words(head_dim, 2) + c / 32)] >> c % 32 & 1u) << 2;
		const uint32_t per_word = 32 / side.bits;
		return codes[word(c / per_word)] >> c % per_word * side.bits & ((1u << side.bits) - 1);
	}
	__device__ float norm(uint32_t t) const {
		const uint32_t word = params[kv_norm_word(head, t, page, side.param_bits)];
		if (side.param_bits == 16) return t % 2 ? high_half(word) : low_half(word);
		return float(word >> t % 4 * 8 & 0xffu) *
		       kv_255th(low_half(params[kv_norm_scale_word(n_kv_heads, head, page)]));
	}
	__device__ uint32_t n_params() const {
		return side.per_channel ? kv_channel_param_words(n_kv_heads, head_dim)
		                        : kv_token_param_words(n_kv_heads, head_dim, side.group, page);
	}
	__device__ Group group(uint32_t i) const { // parameter i
		if (side.param_bits == 8)
			return byte_group(params[kv_byte_param_word(i)] >> i % 2 * 16,
			                  params[kv_byte_largest_word(n_params(), head)]);
		return {low_half(params[i]), high_half(params[i])};
	}
	// The value of a code; `norm`: the token's norm, if the page has norms.
	__device__ float value(uint32_t code, uint32_t t, uint32_t c, float norm) const {
		if (!side.norms) {
			const Group g = group(side.per_channel ? kv_channel_param(head, c, head_dim)
			                                       : kv_token_param(head, c, t, head_dim, side.group, page));
			return float(code) * g.scale + g.zero;
		}
		const float x = book_value(code, side.bits) * norm;
		if (!side.mean) return x;
		const uint32_t pair = params[kv_mean_word(n_kv_heads, head, c, head_dim, page, side.param_bits)];
		return x + (c % 2 ? high_half(pair) : low_half(pair));
	}
};

struct PageKeys : PageSide {
	// f(channel, value) for every channel of token t, in order.
	template <class F> __device__ void each(uint32_t t, F f) const {
		const auto word = [&](uint32_t w) { return kv_k_word(head, w, t, head_dim, side.bits, page); };
		if (side.bits == 16) {
			for (uint32_t w = 0; w < head_dim / 2; ++w) {
				const uint32_t pair = codes[word(w)];
				f(2 * w, low_half(pair));
				f(2 * w + 1, high_half(pair));
			}
			return;
		}
		const float n = side.norms ? norm(t) : 0.f;
		for (uint32_t c = 0; c < head_dim; ++c) f(c, value(code(c, word), t, c, n));
	}
	__device__ float at(uint32_t t, uint32_t c) const { // as a value
		const auto word = [&](uint32_t w) { return kv_k_word(head, w, t, head_dim, side.bits, page); };
		if (side.bits == 16) {
			const uint32_t pair = codes[word(c / 2)];
			return c % 2 ? high_half(pair) : low_half(pair);
		}
		return value(code(c, word), t, c, side.norms ? norm(t) : 0.f);
	}
};

struct PageValues : PageSide {
	const uint32_t* factors; // null if there are none

	__device__ float at(uint32_t t, uint32_t c) const {
		const auto word = [&](uint32_t w) { return kv_v_word(head, t, w, head_dim, side.bits, page); };
		if (side.bits == 16) {
			const uint32_t pair = codes[word(c / 2)];
			return c % 2 ? high_half(pair) : low_half(pair);
		}
		const float x = value(code(c, word), t, c, side.norms ? norm(t) : 0.f);
		if (!factors) return x;
		const uint32_t pair = factors[kv_factor_word(head, c, head_dim)];
		return x * (kv_factor_half(head, c, head_dim) ? high_half(pair) : low_half(pair));
	}
};
struct PageRopeKeys { // rotated keys of latent attention, where others have values
	PageValues values;
	template <class F> __device__ void each(uint32_t t, F f) const {
		for (uint32_t c = 0; c < values.head_dim; ++c) f(c, values.at(t, c));
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

// Keys of latent attention: a latent, then a rotated key, which is where others have values.
template <class Keys, class Rope> struct LatentKeys {
	Keys keys;
	Rope rope;
	uint32_t head_dim, rope_dim;
	template <class F> __device__ void each(uint32_t t, F f) const {
		keys.each(t, f);
		for (uint32_t c = 0; c < rope_dim; ++c) f(head_dim + c, rope.at(t, c));
	}
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

__device__ inline float score_of(const Scores& s, float product) {
	const float score = s.scale * product;
	return s.softcap > 0 ? s.softcap * tanhf(score / s.softcap) : score;
}

struct NoRope { // in place of the rotated part of latent attention's keys and queries
	__device__ float product(uint32_t, uint32_t) const { return 0; }
};
template <class Keys> struct RopePart {
	const float* q; // of a row's first query head
	Keys keys;
	uint32_t R;
	__device__ float product(uint32_t head, uint32_t t) const { return dot(q + uint64_t(head) * R, keys, t); }
};

// What token t receives from one row, averaged over the query heads of one kv head.
template <class Keys, class Rope = NoRope>
__device__ inline float received(const float* q, const float* lse, uint32_t share, uint32_t D, const Scores& scores,
                                 const Keys& keys, uint32_t t, const Rope& rope = {}) {
	float sum = 0;
	for (uint32_t j = 0; j < share; ++j)
		sum += expf(score_of(scores, dot(q + uint64_t(j) * D, keys, t) + rope.product(j, t)) - lse[j]);
	return 1 / float(share) * sum;
}
// The same, with 1 instead of attention, or weighted by the length of the key, as `by` says.
template <class Keys>
__device__ inline float salient(const ScoreBy& by, const float* q, const float* lse, uint32_t share, uint32_t D,
                                const Scores& scores, const Keys& keys, uint32_t t) {
	const float given = by.attention ? received(q, lse, share, D, scores, keys, t) : 1.f;
	if (!by.large && !by.small) return given;
	float squares = 0;
	keys.each(t, [&](uint32_t, float x) { squares += x * x; });
	return by.large ? given * sqrtf(squares) : given / fmaxf(sqrtf(squares), 1e-6f);
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
