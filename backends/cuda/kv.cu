// rope_store, kv_store, kv_load, join_heads: keys and values on their way into and out of pages.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

// Words of one head of one row; null if it is not stored.
struct Slot {
	uint32_t *k, *v;
};
__device__ inline Slot slot_of(const KvPlace& p, uint32_t row, uint32_t n_kv_heads, uint32_t h) {
	const uint32_t* at = p.at + (uint64_t(row) * n_kv_heads + h) * 2;
	return {at[0] == kNoOffset ? nullptr : p.k + at[0], at[1] == kNoOffset ? nullptr : p.v + at[1]};
}

// One head in shared memory: RMS norm with the weights `norm`, if any, and rotation by cs.
__device__ inline void prepare_head(const RopeStoreArgs& a, const float* x, const float* norm, const float* cs,
                                    Shared<double, 8>& partial, Shared<float, kMaxHeadDim>& in,
                                    Shared<float, kMaxHeadDim>& out) {
	float scale = 1;
	if (norm) {
		double sum = 0;
		for (uint32_t c = threadIdx.x; c < a.head_dim; c += blockDim.x) sum += double(x[c]) * double(x[c]);
		scale = float(1 / sqrt(block_sum(sum, partial) / double(a.head_dim) + double(a.eps)));
	}
	for (uint32_t c = threadIdx.x; c < a.head_dim; c += blockDim.x) {
		in[c] = !norm ? x[c] : a.weigh_last ? x[c] * scale : x[c] * scale * norm[c];
		if (c < a.first || c >= a.first + a.rotary_dim) out[c] = in[c];
	}
	__syncthreads();
	const uint32_t half = a.rotary_dim / 2;
	for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
		const uint32_t low = a.first + (a.neox ? i : 2 * i), high = a.first + (a.neox ? i + half : 2 * i + 1);
		const float cos = cs[2 * i], sin = a.back ? -cs[2 * i + 1] : cs[2 * i + 1], x0 = in[low], x1 = in[high];
		out[low] = x0 * cos - x1 * sin;
		out[high] = x0 * sin + x1 * cos;
	}
	__syncthreads();
	if (!norm || !a.weigh_last) return;
	for (uint32_t c = threadIdx.x; c < a.head_dim; c += blockDim.x) out[c] *= norm[c];
	__syncthreads();
}

// Grid: rows in x; heads of q, then kv heads, in y.
__global__ void rope_store_kernel(RopeStoreArgs a) {
	__shared__ Shared<double, 8> partial;
	__shared__ Shared<float, kMaxHeadDim> in, out;
	const uint32_t t = blockIdx.x;
	const float* cs = a.table + uint64_t(t) * a.rotary_dim;
	if (blockIdx.y < a.n_heads) {
		float* q = a.q + (uint64_t(t) * a.n_heads + blockIdx.y) * a.head_dim;
		prepare_head(a, q, a.q_norm, cs, partial, in, out);
		for (uint32_t c = threadIdx.x; c < a.head_dim; c += blockDim.x) q[c] = out[c];
		return;
	}
	const uint32_t h = blockIdx.y - a.n_heads;
	const uint64_t head = uint64_t(t) * a.n_kv_heads + h, row = head * a.head_dim;
	const Slot to = slot_of(a.dst, t, a.n_kv_heads, h);
	if (a.latent_dim) {
		prepare_head(a, a.v + row, nullptr, cs, partial, in, out);
		const float* k = a.k + head * a.latent_dim;
		for (uint32_t w = threadIdx.x; w < a.latent_dim / 2; w += blockDim.x) {
			if (to.k) to.k[uint64_t(w) * a.dst.k_word_stride] = half_pair(k[2 * w], k[2 * w + 1]);
			if (to.v && w < a.head_dim / 2) to.v[w] = half_pair(out[2 * w], out[2 * w + 1]);
		}
		return;
	}
	prepare_head(a, a.k + row, a.k_norm, cs, partial, in, out);
	for (uint32_t w = threadIdx.x; w < a.head_dim / 2; w += blockDim.x) {
		if (to.k) to.k[uint64_t(w) * a.dst.k_word_stride] = half_pair(out[2 * w], out[2 * w + 1]);
		if (to.v) to.v[w] = half_pair(a.v[row + 2 * w], a.v[row + 2 * w + 1]);
	}
}

// A word of K and of V outside of pages, and its place in the pages. Grid: words of a head in x, kv heads in y, rows in
// z.
struct Words {
	uint32_t *k, *v, *place_k, *place_v;
};
__device__ inline Words words_of(const KvStoreArgs& a, uint32_t w, uint32_t t) {
	const uint32_t h = blockIdx.y;
	const uint64_t row = uint64_t(h) * a.t_cap + a.first + t;
	const Slot place = slot_of(a.place, t, a.n_kv_heads, h);
	return {a.k + row * a.k_words + w, a.v + row * a.v_words + w,
	        place.k && w < a.k_words ? place.k + uint64_t(w) * a.place.k_word_stride : nullptr,
	        place.v && w < a.v_words ? place.v + w : nullptr};
}

__global__ void kv_store_kernel(KvStoreArgs a) {
	const uint32_t w = blockIdx.x * blockDim.x + threadIdx.x;
	for (uint32_t t = blockIdx.z; t < a.n; t += gridDim.z) {
		const Words x = words_of(a, w, t);
		if (x.place_k) *x.place_k = *x.k;
		if (x.place_v) *x.place_v = *x.v;
	}
}

__global__ void kv_load_kernel(KvStoreArgs a) {
	const uint32_t w = blockIdx.x * blockDim.x + threadIdx.x;
	for (uint32_t t = blockIdx.z; t < a.n; t += gridDim.z) {
		const Words x = words_of(a, w, t);
		if (x.place_k) *x.k = *x.place_k;
		if (x.place_v) *x.v = *x.place_v;
	}
}

struct Pair {
	float low, high;
};
__device__ inline Pair pair_at(const HeadPlace& x, uint32_t t, uint32_t h, uint32_t c) {
	const uint32_t* w = x.words + h * x.head_stride + t * x.token_stride;
	if (x.halves) return {low_half(w[c]), high_half(w[c])};
	return {__int_as_float(int(w[2 * c])), __int_as_float(int(w[2 * c + 1]))};
}

// Channels of a, then those of b, then zeros. Grid: tokens in x, heads in y, pairs of channels in z.
__global__ void join_heads_kernel(JoinHeadsArgs a) {
	const uint32_t t = blockIdx.x, h = blockIdx.y, c = blockIdx.z * blockDim.x + threadIdx.x;
	if (c >= a.out.pairs) return;
	Pair x{0, 0};
	if (c < a.a.pairs)
		x = pair_at(a.a, t, h, c);
	else if (c - a.a.pairs < a.b.pairs)
		x = pair_at(a.b, t, h, c - a.a.pairs);
	uint32_t* to = a.out.words + h * a.out.head_stride + t * a.out.token_stride;
	if (a.out.halves) {
		to[c] = half_pair(x.low, x.high);
	} else {
		to[2 * c] = uint32_t(__float_as_int(x.low));
		to[2 * c + 1] = uint32_t(__float_as_int(x.high));
	}
}

void add_kv(Kernels& k) {
	k.join_heads = {{KV_KERNEL(join_heads, JoinHeadsArgs)}};
	k.rope_store = {{KV_KERNEL(rope_store, RopeStoreArgs)}};
	k.kv_store = {{KV_KERNEL(kv_store, KvStoreArgs)}};
	k.kv_load = {{KV_KERNEL(kv_load, KvStoreArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
