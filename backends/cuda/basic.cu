// embed, rmsnorm, channel_max, kv_balance.
#include "backends/cuda/kernels.h"
#include "backends/cuda/weights.cuh"

namespace kvrun::cuda::KV_CUDA_BUILD {

// out[t] = table[tokens[t]], zero for a token past the table's end. Grid: 16 elements per thread in x, tokens in y.
__global__ void embed_kernel(EmbedArgs a) {
	const uint32_t unit = blockIdx.x * blockDim.x + threadIdx.x, cols = a.table.cols;
	if (unit * kUnit >= cols) return;
	for (uint32_t t = blockIdx.y; t < a.n_tokens; t += gridDim.y) {
		float e[kUnit] = {};
		if (a.tokens[t] < a.n_rows) weight_unit(weight_row(a.table, a.tokens[t]), unit, e);
		for (uint32_t i = 0; i < kUnit && unit * kUnit + i < cols; ++i)
			a.out[uint64_t(t) * cols + unit * kUnit + i] = e[i];
	}
}

// out = x / sqrt(mean(x^2) + eps) * w. Grid: one block per row.
__global__ void rmsnorm_kernel(RmsNormArgs a) {
	__shared__ Shared<double, 8> partial;
	const float* x = a.x + uint64_t(blockIdx.x) * a.dim;
	float* out = a.out + uint64_t(blockIdx.x) * a.dim;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) sum += double(x[c]) * double(x[c]);
	sum = block_sum(sum, partial);
	const float scale = float(1 / sqrt(sum / double(a.dim) + double(a.eps)));
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) out[c] = x[c] * scale * a.w[c];
}

// out[h][c] = max(out[h][c], |x|) over rows and the heads of kv head h. Grid: channels in x, kv heads in y.
__global__ void channel_max_kernel(ChannelMaxArgs a) {
	const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y, share = a.n_heads / a.n_kv_heads;
	if (c >= a.head_dim) return;
	float m = a.out[h * a.head_dim + c];
	for (uint32_t t = 0; t < a.rows; ++t)
		for (uint32_t j = 0; j < share; ++j) {
			const float x = fabsf(a.x[(uint64_t(t) * a.n_heads + h * share + j) * a.head_dim + c]);
			m = m < x ? x : m;
		}
	a.out[h * a.head_dim + c] = m;
}

// MiKV eq. (2): sqrt(q_max / k_max) as f16, finite, and 1 where it is 0 or there are no keys.
__device__ inline uint32_t balance_of(float q_max, float k_max) {
	if (!(k_max > 0)) return 0x3c00u;
	const uint32_t b = float_to_half(sqrtf(q_max / (k_max < 1e-12f ? 1e-12f : k_max)));
	return b == 0 ? 0x3c00u : b > 0x7bffu ? 0x7bffu : b;
}

// Grid: pairs of channels in x, kv heads in y.
__global__ void kv_balance_kernel(KvBalanceArgs a) {
	const uint32_t w = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y, words = a.head_dim / 2;
	if (w >= words) return;
	float low = 0, high = 0;
	for (uint32_t t = 0; t < a.n; ++t) {
		const uint32_t pair = a.k[(uint64_t(h) * a.t_cap + t) * words + w];
		const float x = fabsf(low_half(pair)), y = fabsf(high_half(pair));
		low = low < x ? x : low, high = high < y ? y : high;
	}
	const float* q = a.q_max + h * a.head_dim + 2 * w;
	a.out[h * words + w] = balance_of(q[0], low) | balance_of(q[1], high) << 16;
}

void add_basic(Kernels& k) {
	k.embed = {{KV_KERNEL(embed, EmbedArgs)}};
	k.rmsnorm = {{KV_KERNEL(rmsnorm, RmsNormArgs)}};
	k.channel_max = {{KV_KERNEL(channel_max, ChannelMaxArgs)}};
	k.kv_balance = {{KV_KERNEL(kv_balance, KvBalanceArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
