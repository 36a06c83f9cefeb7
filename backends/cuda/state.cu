// short_conv, delta_rule, ssm_scan: defined in the shaders of these names.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

// Grid: channels in x, items in y.
__global__ void short_conv_kernel(ShortConvArgs a) {
	const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
	if (c >= a.channels) return;
	const uint32_t* item = a.rows.work + blockIdx.y * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	float seen[kMostTaps] = {}; // x of the current row, last, and of those before
	for (uint32_t j = 1; j < a.taps && from != STATE_ZERO; ++j)
		seen[j] = a.rows.from[from + uint64_t(j - 1) * a.channels + c];
	for (uint32_t t = row; t < row + n; ++t) {
		float sum = 0;
		for (uint32_t j = 0; j + 1 < a.taps; ++j) {
			seen[j] = seen[j + 1];
			sum += a.w[c * a.taps + j] * seen[j];
		}
		seen[a.taps - 1] = a.x[uint64_t(t) * a.channels + c];
		sum += a.w[c * a.taps + a.taps - 1] * seen[a.taps - 1];
		if (a.bias) sum += a.bias[c];
		a.out[uint64_t(t) * a.channels + c] = a.silu ? sum / (1 + expf(-sum)) : sum;
	}
	for (uint32_t j = 1; j < a.taps; ++j) a.rows.to[to + uint64_t(j - 1) * a.channels + c] = seen[j];
}

__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// A thread's rows of one column of a state, whose first element is at state_at of the state.
__device__ inline void load_column(float* s, const StatePlaces& rows, uint32_t from, uint64_t state_at, uint32_t v_dim,
                                   bool inside) {
	for (uint32_t i = 0; i < kStateRows; ++i)
		s[i] = inside && from != STATE_ZERO ? rows.from[from + state_at + uint64_t(i) * v_dim] : 0.f;
}
__device__ inline void store_column(const float* s, const StatePlaces& rows, uint64_t to, uint32_t v_dim) {
	for (uint32_t i = 0; i < kStateRows; ++i) rows.to[to + uint64_t(i) * v_dim] = s[i];
}

// A thread holds kStateRows rows of one column of a head's state; blockDim.x / kStateColumns of them share the column.
// Grid: blocks of columns in x, heads in y, items in z.
__global__ void delta_rule_kernel(DeltaRuleArgs a) {
	// double buffers for even and odd rows: one thread may be a barrier ahead of another
	__shared__ Shared<float, 2 * kMostStateRows> key, query, kept;                             // kept: by_channel
	__shared__ Shared<float, 2 * kMostStateThreads> key_sum, query_sum;                        // k . S, q . S
	__shared__ Shared<float, 2 * kMostStateRows / kStateRows> key_key, query_query, query_key; // products of the two
	const uint32_t thread = threadIdx.x, column = thread % kStateColumns, slice = thread / kStateColumns;
	const uint32_t slices = a.k_dim / kStateRows, first = slice * kStateRows, head = blockIdx.y;
	const uint32_t col = blockIdx.x * kStateColumns + column;
	const bool inside = col < a.v_dim;
	const uint32_t* item = a.rows.work + blockIdx.z * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const uint32_t key_head = a.tiled ? head % a.n_key_heads : head / (a.n_heads / a.n_key_heads);
	const uint64_t state_at = uint64_t(head * a.k_dim + first) * a.v_dim + col;
	float s[kStateRows];
	load_column(s, a.rows, from, state_at, a.v_dim, inside);
	for (uint32_t t = 0; t < n; ++t) {
		const float* x = a.x + uint64_t(row + t) * a.key_stride + key_head * a.k_dim;
		const uint32_t odd = t & 1;
		const uint64_t gate = uint64_t(row + t) * a.n_heads + head;
		for (uint32_t i = thread; i < a.k_dim; i += blockDim.x) {
			query[odd * kMostStateRows + i] = x[i];
			key[odd * kMostStateRows + i] = x[a.k_at + i];
			if (a.by_channel)
				kept[odd * kMostStateRows + i] =
				    expf(a.rate[head] * softplus(a.alpha[gate * a.k_dim + i] + a.shift[head * a.k_dim + i]));
		}
		const float v = inside ? a.x[a.v_at + uint64_t(row + t) * a.value_stride + head * a.v_dim + col] : 0.f;
		const float share = 1 / (1 + expf(-a.beta[gate]));
		const float decay = a.by_channel ? 1.f : expf(a.rate[head] * softplus(a.alpha[gate] + a.shift[head]));
		__syncthreads();
		float k_s = 0, q_s = 0, k_k = 0, q_q = 0, q_k = 0;
		for (uint32_t i = 0; i < kStateRows; ++i) {
			const float k = key[odd * kMostStateRows + first + i], q = query[odd * kMostStateRows + first + i];
			if (a.by_channel) s[i] *= kept[odd * kMostStateRows + first + i];
			k_s += k * s[i], q_s += q * s[i];
			k_k += k * k, q_q += q * q, q_k += q * k;
		}
		key_sum[odd * kMostStateThreads + thread] = k_s;
		query_sum[odd * kMostStateThreads + thread] = q_s;
		const uint32_t lengths = odd * kMostStateRows / kStateRows;
		if (column == 0) {
			key_key[lengths + slice] = k_k;
			query_query[lengths + slice] = q_q;
			query_key[lengths + slice] = q_k;
		}
		__syncthreads();
		k_s = q_s = k_k = q_q = q_k = 0;
		for (uint32_t i = 0; i < slices; ++i) {
			k_s += key_sum[odd * kMostStateThreads + i * kStateColumns + column];
			q_s += query_sum[odd * kMostStateThreads + i * kStateColumns + column];
			k_k += key_key[lengths + i], q_q += query_query[lengths + i], q_k += query_key[lengths + i];
		}
		const float of_k = 1 / sqrtf(k_k + a.eps), of_q = a.scale / sqrtf(q_q + a.eps);
		const float delta = share * (v - decay * (k_s * of_k));
		if (inside && slice == 0) a.out[gate * a.v_dim + col] = decay * (q_s * of_q) + q_k * of_k * of_q * delta;
		const float change = of_k * delta;
		for (uint32_t i = 0; i < kStateRows; ++i) s[i] = decay * s[i] + key[odd * kMostStateRows + first + i] * change;
	}
	if (inside) store_column(s, a.rows, to + state_at, a.v_dim);
}

// A thread holds kStateRows rows of one column of a head's state, as in delta_rule_kernel.
// Grid: blocks of columns in x, heads in y, items in z.
__global__ void ssm_scan_kernel(SsmScanArgs a) {
	// double buffers for even and odd rows: one thread may be a barrier ahead of another
	__shared__ Shared<float, 2 * kMostStateRows> written, read;
	__shared__ Shared<float, 2 * kMostStateThreads> sums; // C . S
	const uint32_t thread = threadIdx.x, column = thread % kStateColumns, slice = thread / kStateColumns;
	const uint32_t slices = a.k_dim / kStateRows, first = slice * kStateRows, head = blockIdx.y;
	const uint32_t col = blockIdx.x * kStateColumns + column;
	const bool inside = col < a.v_dim;
	const uint32_t* item = a.rows.work + blockIdx.z * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const uint32_t group = head / (a.n_heads / a.n_groups);
	const uint64_t state_at = uint64_t(head * a.k_dim + first) * a.v_dim + col;
	float s[kStateRows];
	load_column(s, a.rows, from, state_at, a.v_dim, inside);
	for (uint32_t t = 0; t < n; ++t) {
		const float* x = a.x + uint64_t(row + t) * a.channels;
		const uint32_t odd = t & 1;
		for (uint32_t i = thread; i < a.k_dim; i += blockDim.x) {
			written[odd * kMostStateRows + i] = x[a.n_heads * a.v_dim + group * a.k_dim + i];
			read[odd * kMostStateRows + i] = x[a.n_heads * a.v_dim + (a.n_groups + group) * a.k_dim + i];
		}
		const float v = inside ? x[head * a.v_dim + col] : 0.f;
		const uint64_t gate = uint64_t(row + t) * a.n_heads + head;
		const float step = softplus(a.step[gate] + a.shift[head]), decay = expf(a.rate[head] * step);
		const float change = step * v;
		__syncthreads();
		float sum = 0;
		for (uint32_t i = 0; i < kStateRows; ++i) {
			s[i] = decay * s[i] + written[odd * kMostStateRows + first + i] * change;
			sum += read[odd * kMostStateRows + first + i] * s[i];
		}
		sums[odd * kMostStateThreads + thread] = sum;
		__syncthreads();
		if (inside && slice == 0) {
			sum = 0;
			for (uint32_t i = 0; i < slices; ++i) sum += sums[odd * kMostStateThreads + i * kStateColumns + column];
			a.out[gate * a.v_dim + col] = sum + a.skip[head] * v;
		}
	}
	if (inside) store_column(s, a.rows, to + state_at, a.v_dim);
}

void add_state(Kernels& k) {
	k.short_conv = {{KV_KERNEL(short_conv, ShortConvArgs)}};
	k.ssm_scan = {{KV_KERNEL(ssm_scan, SsmScanArgs)}};
	k.delta_rule = {{KV_KERNEL(delta_rule, DeltaRuleArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
