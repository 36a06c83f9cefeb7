// Keys and values of one kv head, four channels at a time: pages of any format, and f16 rows outside of pages.
// x = scale * code + zero, times V's channel factor. shaders/shared/kv_page.h has the layout of codes and parameters.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/kv_page.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

__device__ inline bool is_live(const uint32_t* bits, uint32_t t) { return bits[t / 32] >> t % 32 & 1u; }
// Whether a row's bits, if there are any, let it see token t in a kv head.
__device__ inline bool is_seen(const SeenTokens& s, uint32_t row, uint32_t kv_head, uint32_t t) {
	const uint64_t of = uint64_t(row) * s.sets + (s.sets > 1 ? kv_head : 0);
	return !s.bits || is_live(s.bits + of * s.row_words, s.at + t);
}

struct Group { // (scale, zero) of codes
	float scale, zero;
};
__device__ inline Group half_group(uint32_t pair) { return {low_half(pair), high_half(pair)}; }
// From a pair of bytes in the low half of a word; `largest`: the word of the largest (scale, |zero|).
__device__ inline Group byte_group(uint32_t bytes, uint32_t largest) {
	return {small_float(bytes & 0xffu) * kv_255th(low_half(largest)),
	        (small_float(bytes >> 8 & 0xffu) - 128.f) * kv_127th(high_half(largest))};
}

__device__ inline float book_value(float code, uint32_t bits) {
	const float u = code - kv_codebook_middle(bits);
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

// ---- formats. Decoding takes the most frequent ones as constants, so that branches on them vanish.

constexpr CodeSide kHalves = {16, 0, 0, 0, 16, 0, 0, 0};
constexpr CodeSide of_channels(uint32_t bits) { return {bits, 0, 1, 0, 16, 0, 0, 0}; }
constexpr CodeSide of_tokens(uint32_t bits) { return {bits, 0, 0, 0, 16, 0, 0, 0}; }
constexpr CodeSide of_book(uint32_t bits, uint32_t mean) { return {bits, 0, 0, 1, 8, 0, mean, 0}; }

#define KV_KNOWN_KEYS(X)                                                                                               \
	X(kHalves) X(of_channels(2)) X(of_channels(4)) X(of_tokens(4)) X(of_tokens(8)) X(of_book(3, 1)) X(of_book(4, 1))
#define KV_KNOWN_VALUES(X)                                                                                             \
	X(kHalves) X(of_tokens(2)) X(of_tokens(4)) X(of_tokens(8)) X(of_book(2, 0)) X(of_book(3, 0)) X(of_book(4, 0))
#define KV_KNOWN_LATENTS(X) X(kHalves)

// All that decoding depends on, except the group, in one number.
constexpr uint32_t kind_of(const CodeSide& s) {
	if (s.bits == 16) return 16;
	return s.bits | s.per_channel << 8 | s.norms << 9 | (s.param_bits == 8) << 10 | s.mean << 11 | s.factors << 12;
}

// Calls f(side), with constants in place of the members of a known format.
#define KV_KNOWN(known)                                                                                                \
	case kind_of(known):                                                                                               \
		return f(CodeSide{(known).bits, side.group, (known).per_channel, (known).norms, (known).param_bits,            \
		                  side.rotate, (known).mean, 0});
template <class F> __device__ inline void known_keys(CodeSide side, F f) {
	switch (kind_of(side)) { KV_KNOWN_KEYS(KV_KNOWN) }
	f(side);
}
template <class F> __device__ inline void known_values(CodeSide side, F f) {
	switch (kind_of(side)) { KV_KNOWN_VALUES(KV_KNOWN) }
	f(side);
}
template <class F> __device__ inline void known_latents(CodeSide side, F f) {
	switch (kind_of(side)) { KV_KNOWN_LATENTS(KV_KNOWN) }
	f(side);
}
#undef KV_KNOWN

// ---- keys and values, four channels at a time

__device__ inline float4 half_quad(uint32_t first, uint32_t second) {
	return {low_half(first), high_half(first), low_half(second), high_half(second)};
}

// f(c) for c = 0, 4, ... below D. Constants where they are compared with what lies inside of 16 channels.
template <class F> __device__ inline void each_quad(uint32_t D, F f) {
	for (uint32_t block = 0; block < D / 16; ++block) {
#pragma unroll
		for (uint32_t quad = 0; quad < 4; ++quad) f(block * 16 + quad * 4);
	}
	for (uint32_t c = D / 16 * 16; c < D; c += 4) f(c);
}
// f(channel, value) for every channel of token t, in order.
template <class Keys, class F> __device__ inline void each_channel(const Keys& keys, uint32_t t, F f) {
	each_quad(keys.head_dim, [&](uint32_t c) {
		const float4 x = keys.quad(t, c);
		f(c, x.x), f(c + 1, x.y), f(c + 2, x.z), f(c + 3, x.w);
	});
}

struct PageSide { // keys or values of one kv head
	const uint32_t *codes, *params;
	CodeSide side;
	uint32_t head, head_dim, page, n_kv_heads;

	// Codes of channels c .. c + 3 of a token whose words are codes[word(0)], codes[word(1)], ...
	template <class Word> __device__ uint4 quad_codes(uint32_t c, Word word) const {
		if (side.bits == 3) {
			const uint32_t low = codes[word(c / 16)] >> c % 16 * 2;
			const uint32_t high = codes[word(kv_token_words(head_dim, 2) + c / 32)] >> c % 32;
			const auto code = [&](uint32_t i) { return (low >> 2 * i & 3u) | (high >> i & 1u) << 2; };
			return {code(0), code(1), code(2), code(3)};
		}
		const uint32_t per_word = 32 / side.bits, mask = (1u << side.bits) - 1;
		const uint32_t four = codes[word(c / per_word)] >> c % per_word * side.bits;
		return {four & mask, four >> side.bits & mask, four >> 2 * side.bits & mask, four >> 3 * side.bits & mask};
	}
	__device__ float norm(uint32_t t) const {
		const uint32_t word = params[kv_norm_word(head, t, page, side.param_bits)];
		if (side.param_bits == 16) return t % 2 ? high_half(word) : low_half(word);
		return small_float(word >> t % 4 * 8 & 0xffu) *
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
		return half_group(params[i]);
	}
	__device__ float scaled(float code, const Group& g) const {
		// the product of a half and a code is exact
		return side.param_bits == 16 ? fmaf(code, g.scale, g.zero) : code * g.scale + g.zero;
	}
	// Values of codes of channels c .. c + 3 of token t.
	__device__ float4 values_of(const uint4& code, uint32_t t, uint32_t c) const {
		const float x = small_float(code.x), y = small_float(code.y), z = small_float(code.z), w = small_float(code.w);
		if (side.norms) {
			const float n = norm(t);
			const auto value = [&](float i) { return book_value(i, side.bits) * n; };
			if (!side.mean) return {value(x), value(y), value(z), value(w)};
			const uint32_t* pair = params + kv_mean_word(n_kv_heads, head, c, head_dim, page, side.param_bits);
			const float4 mean = half_quad(pair[0], pair[1]);
			return {value(x) + mean.x, value(y) + mean.y, value(z) + mean.z, value(w) + mean.w};
		}
		if (!side.per_channel) {
			// 16 channels lie in one group
			const Group g = group(kv_token_param(head, c / 16 * 16, t, head_dim, side.group, page));
			return {scaled(x, g), scaled(y, g), scaled(z, g), scaled(w, g)};
		}
		const uint32_t first = kv_channel_param(head, c, head_dim);
		Group a, b, d, e;
		if (side.param_bits == 16) {
			const uint4 four = *reinterpret_cast<const uint4*>(params + first);
			a = half_group(four.x), b = half_group(four.y), d = half_group(four.z), e = half_group(four.w);
		} else {
			a = group(first), b = group(first + 1), d = group(first + 2), e = group(first + 3);
		}
		return {scaled(x, a), scaled(y, b), scaled(z, d), scaled(w, e)};
	}
};

struct PageKeys : PageSide {
	__device__ float4 quad(uint32_t t, uint32_t c) const {
		const auto word = [&](uint32_t w) { return kv_k_word(head, w, t, head_dim, side.bits, page); };
		if (side.bits == 16) return half_quad(codes[word(c / 2)], codes[word(c / 2 + 1)]);
		return values_of(quad_codes(c, word), t, c);
	}
};

struct PageValues : PageSide {
	const uint32_t* factors;

	__device__ float4 quad(uint32_t t, uint32_t c) const {
		const auto word = [&](uint32_t w) { return kv_v_word(head, t, w, head_dim, side.bits, page); };
		if (side.bits == 16) {
			const uint2 pairs = *reinterpret_cast<const uint2*>(codes + word(c / 2));
			return half_quad(pairs.x, pairs.y);
		}
		const float4 x = values_of(quad_codes(c, word), t, c);
		if (!side.factors) return x;
		const uint32_t* pair = factors + kv_factor_word(head, c, head_dim);
		const float4 factor = half_quad(pair[0], pair[1]);
		return {x.x * factor.x, x.y * factor.y, x.z * factor.z, x.w * factor.w};
	}
};

// (t_cap, head_dim) halves of one kv head: keys or values outside of pages. Tokens beyond `last` may be asked for.
struct Rows {
	const uint32_t* words;
	uint32_t first, head_dim, last; // token 0 is row `first`
	__device__ float4 quad(uint32_t t, uint32_t c) const {
		const uint32_t row = first + t < last ? first + t : last;
		const uint2 pairs = *reinterpret_cast<const uint2*>(words + uint64_t(row) * (head_dim / 2) + c / 2);
		return half_quad(pairs.x, pairs.y);
	}
};

// ---- scores. Products are added in the same 16 lanes as in the cpu backend.

constexpr uint32_t kLanes = 16;

template <class Keys> __device__ inline float dot(const float* q, const Keys& keys, uint32_t t) {
	float lane[kLanes] = {};
	each_channel(keys, t, [&](uint32_t c, float x) {
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
	each_channel(keys, t, [&](uint32_t, float x) { squares += x * x; });
	return by.large ? given * sqrtf(squares) : given / fmaxf(sqrtf(squares), 1e-6f);
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
