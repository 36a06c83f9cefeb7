// kv_pack and kv_block: f16 tokens -> packed pages and parameter blocks, by the rules of engine/kv_host/quant.h.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"
#include "backends/cuda/page.cuh"
#include "shared/kv_page.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

__device__ inline PackWork pack_item(const uint32_t* work, uint32_t i) {
	const uint32_t* w = work + uint64_t(i) * PACK_WORDS;
	return {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]};
}

__device__ inline float top_code(uint32_t bits) { return float((1u << bits) - 1); }
// A group's (scale, zero), rounded to f16; scale = (max - min) / (2^bits - 1).
__device__ inline Group group_of(float min, float max, uint32_t bits) {
	return {half_to_float(float_to_half((max - min) / top_code(bits))), half_to_float(float_to_half(min))};
}
// XQuant eq. (9): codes are computed with the plain end points; only the stored parameters move inwards.
__device__ inline uint32_t param_of(Group g, uint32_t bits, float shift, float shrink) {
	return half_pair(shrink * g.scale, g.zero + shift * g.scale * top_code(bits));
}
// The bytes nearest to the f16 parameters.
__device__ inline uint32_t bytes_of(uint32_t param, uint32_t largest) {
	const float scale = low_half(param), scale_step = kv_255th(low_half(largest)),
	            zero_step = kv_127th(high_half(largest));
	const float s = scale_step > 0 ? fminf(rintf(scale / scale_step), 255.f) : 0.f;
	const float z = 128.f + (zero_step > 0 ? rintf(high_half(param) / zero_step) : 0.f);
	return (scale > 0 && s < 1.f ? 1u : uint32_t(s)) | uint32_t(fminf(fmaxf(z, 0.f), 255.f)) << 8;
}
// The parameters that codes are computed with: those that the bytes decode to, at the plain end points.
__device__ inline Group plain_of(uint32_t bytes, uint32_t largest, uint32_t bits, float shift, float shrink) {
	Group g = byte_group(bytes, largest);
	g.scale = g.scale / shrink;
	g.zero = g.zero - shift * g.scale * top_code(bits);
	return g;
}
__device__ inline uint32_t larger_params(uint32_t largest, uint32_t param) {
	return half_pair(fmaxf(low_half(largest), low_half(param)), fmaxf(high_half(largest), fabsf(high_half(param))));
}
__device__ inline uint32_t code_of(float x, Group g, uint32_t bits) {
	if (!(g.scale > 0)) return 0;
	const float code = rintf((x - g.zero) / g.scale); // half to even
	return code <= 0 ? 0u : code >= top_code(bits) ? (1u << bits) - 1 : uint32_t(code);
}

// The tokens of a work item as they are quantised: keys times the balancer, values divided by the channel factors.
struct Input {
	const PackSideArgs& a;
	const PackWork& w;
	const uint32_t* norm; // of this work item, or null
	// token t of the item, channel c of kv head h
	__device__ float at(uint32_t h, uint32_t t, uint32_t c) const {
		const uint32_t row = a.sources[w.src + t];
		const float x = half_at(a.src, (uint64_t(h) * a.t_cap + row) * a.head_dim + c);
		if (!norm) return x;
		const float factor = half_at(norm, h * a.head_dim + c);
		return a.is_k ? x * factor : x / factor;
	}
};
__device__ inline Input input_of(const PackSideArgs& a, const PackWork& w) {
	return {a, w, a.norm ? a.norm + (a.is_k ? w.balance : w.v_factors) : nullptr};
}

// Stores word `word` of token t of kv head h: codes side by side, lowest channel lowest; code(c) is the code of channel
// c.
template <class CodeOf>
__device__ inline void put_codes(const PackSideArgs& a, const PackWork& w, uint32_t h, uint32_t t, uint32_t word,
                                 CodeOf code) {
	const uint32_t at = a.is_k ? w.k_codes : w.v_codes;
	if (at == kNoOffset) return; // another layer stores them
	const uint32_t low_bits = a.side.bits == 3 ? 2 : a.side.bits, low_words = kv_token_words(a.head_dim, low_bits);
	const bool high = word >= low_words; // plane of the high bits of 3-bit codes
	const uint32_t bits = high ? 1 : low_bits, per_word = 32 / bits,
	               first = (high ? word - low_words : word) * per_word;
	uint32_t packed = 0;
	for (uint32_t i = 0; i < per_word && first + i < a.head_dim; ++i)
		packed |= (code(first + i) >> (high ? 2 : 0) & ((1u << bits) - 1)) << i * bits;
	const uint32_t slot = w.slot + t;
	a.codes[at + (a.is_k ? kv_k_word(h, word, slot, a.head_dim, a.side.bits, a.page)
	                     : kv_v_word(h, slot, word, a.head_dim, a.side.bits, a.page))] = packed;
}
// The same, with codes computed from group(c), the parameters of channel c.
template <class GroupOf>
__device__ inline void put_word(const PackSideArgs& a, const PackWork& w, const Input& x, uint32_t h, uint32_t t,
                                uint32_t word, GroupOf group) {
	put_codes(a, w, h, t, word, [&](uint32_t c) { return code_of(x.at(h, t, c), group(c), a.side.bits); });
}

// Parameters per token and run of channels; a run may span heads. Grid: work items in x, tokens of one in y.
__global__ void __launch_bounds__(kThreads) pack_tokens_kernel(PackSideArgs a) {
	__shared__ Shared<float, kMaxRuns> scale, zero;
	const PackWork w = pack_item(a.work, blockIdx.x);
	const uint32_t t = blockIdx.y, D = a.head_dim, group = a.side.group, bits = a.side.bits;
	if (t >= w.n) return;
	const uint32_t first_head = w.head == kNoOffset ? 0 : w.head, n_heads = w.head == kNoOffset ? a.n_kv_heads : 1;
	const uint32_t first_run = first_head * D / group, n_runs = n_heads * D / group;
	const Input x = input_of(a, w);
	uint32_t* params = a.params + (a.is_k ? w.k_params : w.v_params);
	for (uint32_t run = threadIdx.x / kWarp; run < n_runs; run += kThreads / kWarp) { // a warp per run
		const uint32_t lane = threadIdx.x % kWarp, begin = (first_run + run) * group; // channel over all heads
		float min = -minus_inf(), max = minus_inf();
		for (uint32_t i = lane; i < group; i += kWarp) {
			const float value = x.at((begin + i) / D, t, (begin + i) % D);
			min = fminf(min, value), max = fmaxf(max, value);
		}
		const Group g = group_of(warp_min(min), warp_max(max), bits);
		if (lane) continue;
		scale[run] = g.scale, zero[run] = g.zero;
		params[kv_token_param(begin / D, begin % D, w.slot + t, D, group, a.page)] =
		    param_of(g, bits, a.zero_shift, a.scale_factor);
	}
	__syncthreads();
	const uint32_t words = kv_token_words(D, bits);
	for (uint32_t i = threadIdx.x; i < n_heads * words; i += blockDim.x) {
		const uint32_t h = first_head + i / words;
		put_word(a, w, x, h, t, i % words, [&](uint32_t c) {
			const uint32_t run = (h * D + c) / group - first_run;
			return Group{scale[run], zero[run]};
		});
	}
}

// K's parameters per channel: over the tokens of the page, or from a block. Grid: work items in x, kv heads in y.
__global__ void __launch_bounds__(kThreads, 8) pack_channels_kernel(PackSideArgs a) {
	__shared__ Shared<float, kMaxHeadDim> scale, zero;
	__shared__ Shared<uint32_t, kMaxHeadDim> stored; // f16 parameters, if they are stored in bytes
	const bool bytes = a.side.param_bits == 8;
	const PackWork w = pack_item(a.work, blockIdx.x);
	const uint32_t h = blockIdx.y, D = a.head_dim, bits = a.side.bits;
	if (w.head != kNoOffset && w.head != h) return;
	const Input x = input_of(a, w);
	for (uint32_t c = threadIdx.x; c < D; c += blockDim.x) {
		uint32_t& param = a.params[w.k_params + kv_channel_param(h, bytes ? 0 : c, D)];
		Group g;
		if (a.k_block) {
			g = {low_half(param), high_half(param)};
		} else {
			float min = x.at(h, 0, c), max = min;
			for (uint32_t t = 1; t < w.n; ++t) {
				const float value = x.at(h, t, c);
				min = value < min ? value : min, max = value < max ? max : value;
			}
			g = group_of(min, max, bits);
			const uint32_t word = param_of(g, bits, a.zero_shift, a.scale_factor);
			if (bytes)
				stored[c] = word;
			else
				param = word;
		}
		scale[c] = g.scale, zero[c] = g.zero;
	}
	__syncthreads();
	if (bytes) {
		uint32_t largest = 0;
		for (uint32_t c = 0; c < D; ++c) largest = larger_params(largest, stored[c]);
		uint32_t* params = a.params + w.k_params;
		if (threadIdx.x == 0) params[kv_byte_largest_word(kv_channel_param_words(a.n_kv_heads, D), h)] = largest;
		for (uint32_t c = threadIdx.x * 2; c < D; c += blockDim.x * 2) {
			uint32_t word = 0;
			for (uint32_t i = 0; i < 2; ++i) {
				const uint32_t pair = bytes_of(stored[c + i], largest);
				const Group g = plain_of(pair, largest, bits, a.zero_shift, a.scale_factor);
				scale[c + i] = g.scale, zero[c + i] = g.zero;
				word |= pair << i * 16;
			}
			params[kv_byte_param_word(kv_channel_param(h, c, D))] = word;
		}
		__syncthreads();
	}
	const uint32_t words = kv_token_words(D, bits);
	for (uint32_t i = threadIdx.x; i < words * w.n; i += blockDim.x) // neighbouring threads write neighbouring tokens
		put_word(a, w, x, h, i % w.n, i / w.n, [&](uint32_t c) { return Group{scale[c], zero[c]}; });
}

// Values of a whole page with parameters in bytes, per token and run of channels of a kv head. Grid: work items in x,
// kv heads in y.
__global__ void __launch_bounds__(kThreads) pack_runs_kernel(PackSideArgs a) {
	__shared__ Shared<uint32_t, kMaxGroups> stored; // [run][token], in f16, then in bytes
	const PackWork w = pack_item(a.work, blockIdx.x);
	const uint32_t h = blockIdx.y, D = a.head_dim, bits = a.side.bits, group = a.side.group, page = a.page;
	if (w.head != kNoOffset && w.head != h) return;
	const Input x = input_of(a, w);
	uint32_t* params = a.params + w.v_params;
	const uint32_t n = D / group * page, n_params = kv_token_param_words(a.n_kv_heads, D, group, page);
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
		float min = x.at(h, i % page, i / page * group), max = min;
		for (uint32_t c = 1; c < group; ++c) {
			const float value = x.at(h, i % page, i / page * group + c);
			min = fminf(min, value), max = fmaxf(max, value);
		}
		stored[i] = param_of(group_of(min, max, bits), bits, a.zero_shift, a.scale_factor);
	}
	__syncthreads();
	uint32_t largest = 0;
	for (uint32_t i = 0; i < n; ++i) largest = larger_params(largest, stored[i]);
	if (threadIdx.x == 0) params[kv_byte_largest_word(n_params, h)] = largest;
	__syncthreads(); // all threads have read the f16 parameters
	for (uint32_t i = threadIdx.x * 2; i < n; i += blockDim.x * 2) {
		const uint32_t low = bytes_of(stored[i], largest), high = bytes_of(stored[i + 1], largest);
		stored[i] = low, stored[i + 1] = high;
		params[kv_byte_param_word(kv_token_param(h, 0, 0, D, group, page) + i)] = low | high << 16;
	}
	__syncthreads();
	const uint32_t words = kv_token_words(D, bits);
	for (uint32_t i = threadIdx.x; i < words * page; i += blockDim.x) {
		const uint32_t t = i / words;
		put_word(a, w, x, h, t, i % words, [&](uint32_t c) {
			return plain_of(stored[c / group * page + t], largest, bits, a.zero_shift, a.scale_factor);
		});
	}
}

// The codebook's code nearest to x.
__device__ inline uint32_t book_code(float x, uint32_t bits) {
	uint32_t code = 0;
	for (uint32_t i = 0; i + 1 < 1u << bits; ++i)
		code += x > 0.5f * (book_value(float(i), bits) + book_value(float(i + 1), bits));
	return code;
}

struct PackRows {
	Shared<float, kPackRows * kMaxHeadDim> y; // rotated tokens
	Shared<float, kMaxHeadDim> mean;
	Shared<float, kThreads> norm; // of the page's tokens
};

// Means of the page's keys over tokens, rotated and rounded as in the page's parameters.
__device__ inline void page_means(const PackSideArgs& a, const Input& x, PackRows& s, uint32_t h, uint32_t* params) {
	const uint32_t D = a.head_dim;
	for (uint32_t c = threadIdx.x; c < D; c += blockDim.x) {
		float sum = 0;
		for (uint32_t t = 0; t < a.page; ++t) sum += x.at(h, t, c);
		s.y[c] = sum / float(a.page);
	}
	if (a.side.rotate) rotate_rows(s.y, 1, kMaxHeadDim, D, false);
	__syncthreads();
	for (uint32_t c = threadIdx.x * 2; c < D; c += blockDim.x * 2) {
		const uint32_t pair = half_pair(s.y[c], s.y[c + 1]);
		s.mean[c] = low_half(pair), s.mean[c + 1] = high_half(pair);
		params[kv_mean_word(a.n_kv_heads, h, c, D, a.page, a.side.param_bits)] = pair;
	}
	__syncthreads();
}

// Codes and norm of token t, whose row of s.y is `row`, by one thread.
__device__ inline void pack_row(const PackSideArgs& a, const PackWork& w, PackRows& s, uint32_t h, uint32_t t,
                                uint32_t row) {
	const uint32_t D = a.head_dim, bits = a.side.bits;
	float sum = 0, decoded = 0;
	for (uint32_t c = 0; c < D; ++c) {
		const float v = s.y[row * kMaxHeadDim + c] - (a.side.mean ? float(s.mean[c]) : 0.f);
		s.y[row * kMaxHeadDim + c] = v;
		sum += v * v;
	}
	const float rms = sqrtf(sum / float(D));
	for (uint32_t c = 0; c < D; ++c) s.y[row * kMaxHeadDim + c] = rms > 0 ? s.y[row * kMaxHeadDim + c] / rms : 0.f;
	float best = 0, nearest = -1;
	for (uint32_t i = 0; i < kv_codebook_tries(bits); ++i) {
		const float factor = kv_codebook_factor(bits, i);
		float dot = 0, length = 0;
		for (uint32_t c = 0; c < D; ++c) {
			const float z = s.y[row * kMaxHeadDim + c], v = book_value(float(book_code(z * factor, bits)), bits);
			dot += z * v, length += v * v;
		}
		const float near = dot * dot / length;
		if (near > nearest) nearest = near, best = factor, decoded = length;
	}
	const auto code = [&](uint32_t c) { return book_code(s.y[row * kMaxHeadDim + c] * best, bits); };
	for (uint32_t word = 0; word < kv_token_words(D, bits); ++word) put_codes(a, w, h, t, word, code);
	s.norm[t] = sqrtf(sum / decoded);
}

// Scale::Codebook: codes of a codebook for a whole page, a norm per token. Grid: work items in x, kv heads in y.
__global__ void __launch_bounds__(kThreads) pack_pages_kernel(PackSideArgs a) {
	__shared__ PackRows s;
	const PackWork w = pack_item(a.work, blockIdx.x);
	const uint32_t h = blockIdx.y, D = a.head_dim, param_bits = a.side.param_bits;
	if (w.head != kNoOffset && w.head != h) return;
	const Input x = input_of(a, w);
	uint32_t* params = a.params + (a.is_k ? w.k_params : w.v_params);
	if (a.side.mean) page_means(a, x, s, h, params);
	for (uint32_t first = 0; first < a.page; first += kPackRows) {
		for (uint32_t i = threadIdx.x; i < kPackRows * D; i += blockDim.x)
			s.y[i / D * kMaxHeadDim + i % D] = x.at(h, first + i / D, i % D);
		if (a.side.rotate) rotate_rows(s.y, kPackRows, kMaxHeadDim, D, false);
		__syncthreads();
		if (threadIdx.x < kPackRows) pack_row(a, w, s, h, first + threadIdx.x, threadIdx.x);
		__syncthreads();
	}
	float largest = 0;
	for (uint32_t t = 0; t < a.page; ++t) largest = fmaxf(largest, s.norm[t]);
	const uint32_t largest_half = float_to_half(largest), per_word = 32 / param_bits;
	const float step = kv_255th(half_to_float(largest_half));
	if (param_bits == 8 && threadIdx.x == 0) params[kv_norm_scale_word(a.n_kv_heads, h, a.page)] = largest_half;
	for (uint32_t t = threadIdx.x * per_word; t < a.page; t += blockDim.x * per_word) {
		uint32_t packed = 0;
		for (uint32_t i = 0; i < per_word; ++i) {
			const float norm = s.norm[t + i];
			packed |= (param_bits == 16 ? float_to_half(norm)
			           : step > 0       ? uint32_t(fminf(rintf(norm / step), 255.f))
			                            : 0u)
			          << i * param_bits;
		}
		params[kv_norm_word(h, t, a.page, param_bits)] = packed;
	}
}

// ZipCache's channel factor: sqrt(max |x|) as f16, or 1 if that is 0.
__device__ inline uint32_t factor_of(float max) {
	const uint32_t f = float_to_half(sqrtf(max));
	return f ? f : 0x3c00u;
}

// Parameters over all tokens of a work item. Grid: pairs of channels in x, kv heads in y, work items in z.
__global__ void kv_block_kernel(KvBlockArgs a) {
	const uint32_t* words = a.work + uint64_t(blockIdx.z) * BLOCK_WORDS;
	const BlockWork w = {words[0], words[1], words[2], words[3], words[4], words[5]};
	const uint32_t pair = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y, D = a.head_dim;
	if (pair >= D / 2 || (w.head != kNoOffset && w.head != h)) return;
	const uint64_t head = uint64_t(h) * a.t_cap * (D / 2) + pair;
	if (w.k_params != kNoOffset) {
		float factor[2] = {1, 1}, min[2] = {}, max[2] = {};
		if (a.balance)
			for (uint32_t i = 0; i < 2; ++i) factor[i] = half_at(a.balance + w.balance, h * D + 2 * pair + i);
		for (uint32_t t = 0; t < w.n; ++t) {
			const uint32_t word = a.k[head + uint64_t(a.sources[w.src + t]) * (D / 2)];
			const float x[2] = {low_half(word) * factor[0], high_half(word) * factor[1]};
			for (uint32_t i = 0; i < 2; ++i) {
				min[i] = t == 0 || x[i] < min[i] ? x[i] : min[i];
				max[i] = t == 0 || !(x[i] < max[i]) ? x[i] : max[i];
			}
		}
		for (uint32_t i = 0; i < 2; ++i)
			a.words[w.k_params + kv_channel_param(h, 2 * pair + i, D)] =
			    param_of(group_of(min[i], max[i], a.k_bits), a.k_bits, 0, 1);
	}
	if (w.v_factors != kNoOffset) {
		float low = 0, high = 0;
		for (uint32_t t = 0; t < w.n; ++t) {
			const uint32_t word = a.v[head + uint64_t(a.sources[w.src + t]) * (D / 2)];
			const float x = fabsf(low_half(word)), y = fabsf(high_half(word));
			low = low < x ? x : low, high = high < y ? y : high;
		}
		a.words[w.v_factors + kv_factor_word(h, 2 * pair, D)] = factor_of(low) | factor_of(high) << 16;
	}
}

void add_pack(Kernels& k) {
	k.pack_tokens = {{KV_KERNEL(pack_tokens, PackSideArgs)}};
	k.pack_channels = {{KV_KERNEL(pack_channels, PackSideArgs)}};
	k.pack_pages = {{KV_KERNEL(pack_pages, PackSideArgs)}};
	k.pack_runs = {{KV_KERNEL(pack_runs, PackSideArgs)}};
	k.kv_block = {{KV_KERNEL(kv_block, KvBlockArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
