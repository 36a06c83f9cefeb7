// embed, norms, gaussian_top_k, sums of streams, activate, channel_max, kv_balance.
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

// out = x / sqrt(mean(x^2) + eps) * w, of w one of the rows. Grid: one block per row.
__global__ void rmsnorm_kernel(RmsNormArgs a) {
	__shared__ Shared<double, 8> partial;
	const float* x = a.x + uint64_t(blockIdx.x) * a.dim;
	float* out = a.out + uint64_t(blockIdx.x) * a.dim;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) sum += double(x[c]) * double(x[c]);
	sum = block_sum(sum, partial);
	const float scale = float(1 / sqrt(sum / double(a.dim) + double(a.eps)));
	const float* w = a.w + uint64_t(blockIdx.x % a.groups) * a.dim;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) out[c] = x[c] * scale * w[c];
}

// out = (x - mean) / sqrt(variance + eps) * w + bias, of w one of the rows. Grid: one block per row.
__global__ void layer_norm_kernel(LayerNormArgs a) {
	__shared__ Shared<double, 8> partial, partial_squares;
	const float* x = a.x + uint64_t(blockIdx.x) * a.dim;
	float* out = a.out + uint64_t(blockIdx.x) * a.dim;
	double sum = 0, squares = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) sum += double(x[c]);
	const double mean = block_sum(sum, partial) / double(a.dim);
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
		const double d = double(x[c]) - mean;
		squares += d * d;
	}
	const double scale = 1 / sqrt(block_sum(squares, partial_squares) / double(a.dim) + double(a.eps));
	const uint64_t of_group = uint64_t(blockIdx.x % a.groups) * a.dim;
	const float *w = a.w + of_group, *bias = a.bias ? a.bias + of_group : nullptr;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x)
		out[c] = float((double(x[c]) - mean) * scale) * w[c] + (bias ? bias[c] : 0.f);
}

// out = x * w * rms(like) / rms(x). Grid: one block per row.
__global__ void match_rms_kernel(MatchRmsArgs a) {
	__shared__ Shared<double, 8> partial, partial_like;
	const float *x = a.x + uint64_t(blockIdx.x) * a.dim, *like = a.like + uint64_t(blockIdx.x) * a.dim;
	float* out = a.out + uint64_t(blockIdx.x) * a.dim;
	double mine = 0, theirs = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
		mine += double(x[c]) * double(x[c]);
		theirs += double(like[c]) * double(like[c]);
	}
	mine = block_sum(mine, partial) / double(a.dim) + double(a.eps);
	theirs = block_sum(theirs, partial_like) / double(a.dim) + double(a.eps);
	const float scale = float(sqrt(theirs / mine));
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) out[c] = x[c] * scale * a.w[c];
}

// out = max(x - (mean + cut * deviation), 0). Grid: one block per row.
__global__ void gaussian_top_k_kernel(GaussianTopKArgs a) {
	__shared__ Shared<double, 8> partial, partial_squares;
	const float* x = a.x + uint64_t(blockIdx.x) * a.n;
	float* out = a.out + uint64_t(blockIdx.x) * a.n;
	double sum = 0, squares = 0;
	for (uint32_t c = threadIdx.x; c < a.n; c += blockDim.x) sum += double(x[c]);
	const double mean = block_sum(sum, partial) / double(a.n);
	for (uint32_t c = threadIdx.x; c < a.n; c += blockDim.x) {
		const double d = double(x[c]) - mean;
		squares += d * d;
	}
	const double low = mean + double(a.cut) * sqrt(block_sum(squares, partial_squares) / double(a.n));
	for (uint32_t c = threadIdx.x; c < a.n; c += blockDim.x) {
		const double v = double(x[c]) - low;
		out[c] = v > 0 ? float(v) : 0.f;
	}
}

// The first element of row t of a stream.
__device__ inline uint64_t start_of(const StreamPlaces& p, uint32_t stream, uint32_t t, uint32_t dim) {
	return (uint64_t(stream) * p.stream_stride + (uint64_t(p.first) + t) * p.row_stride) * dim;
}

// x[i][t] += sum of w[t][i][j] * y[j][t], or = sum. Grid: tokens in x, columns in y, a thread each.
__global__ void stream_sum_kernel(StreamSumArgs a) {
	const uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, t = blockIdx.x;
	if (c >= a.dim) return;
	float v[KV_MOST_STREAMS];
	for (uint32_t j = 0; j < KV_MOST_STREAMS; ++j) v[j] = j < a.k ? a.y[start_of(a.in_y, j, t, a.dim) + c] : 0.f;
	const float* w = a.w + uint64_t(t) * a.m * a.k;
	for (uint32_t i = 0; i < a.m; ++i) {
		float& x = a.x[start_of(a.in_x, i, t, a.dim) + c];
		float sum = a.adds ? x : 0.f;
		for (uint32_t j = 0; j < KV_MOST_STREAMS; ++j)
			if (j < a.k) sum += w[i * a.k + j] * v[j];
		x = sum;
	}
}

// out[t] = sum of sigmoid(gate[t][i]) * x[t][i]. Grid: tokens in x, columns in y, a thread each.
__global__ void stream_mix_kernel(StreamMixArgs a) {
	const uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, t = blockIdx.x;
	if (c >= a.dim) return;
	float sum = 0;
	for (uint32_t i = 0; i < a.m; ++i) {
		const uint64_t at = (uint64_t(t) * a.m + i) * a.dim + c;
		sum += a.x[at] / (1 + expf(-a.gate[at]));
	}
	a.out[uint64_t(t) * a.dim + c] = sum;
}

// out[t][i] = sigmoid(root(key[t][i] . query[t][i] / sqrt(dim))) * value[t], root(s) = sign(s) * sqrt(max(|s|, least)).
// Grid: one block per row of a stream.
__global__ void stream_gate_kernel(StreamGateArgs a) {
	__shared__ Shared<double, 8> partial;
	const uint64_t row = uint64_t(blockIdx.x) * a.dim;
	const float *key = a.key + row, *query = a.query + row, *value = a.value + uint64_t(blockIdx.x / a.m) * a.dim;
	float* out = a.out + row;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) sum += double(key[c]) * double(query[c]);
	const float s = float(block_sum(sum, partial) / sqrt(double(a.dim)));
	const float root = sqrtf(fmaxf(fabsf(s), KV_GATE_LEAST));
	const float share = 1 / (1 + expf(s > 0 ? -root : s < 0 ? root : 0.f));
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) out[c] = share * value[c];
}

// Coefficients of hyper-connections (op::StreamCoefs). Grid: a thread per token.
__global__ void stream_coefs_kernel(StreamCoefsArgs a) {
	const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x, m = a.m;
	if (t >= a.tokens) return;
	const float* x = a.x + uint64_t(t) * a.n;
	for (uint32_t i = 0; i < m; ++i) {
		a.pre[uint64_t(t) * m + i] = 1 / (1 + expf(-(a.scale[0] * x[i] + a.base[i]))) + a.eps;
		if (a.post)
			a.post[uint64_t(t) * m + i] =
			    a.post_scale / (1 + expf(-(a.scale[1] * x[m + i] + a.base[m + i]))) + a.post_eps;
	}
	if (!a.mix) return;
	float c[KV_MOST_STREAMS][KV_MOST_STREAMS]; // by `from`, then by `to`
	for (uint32_t from = 0; from < m; ++from) {
		float most = 0, sum = 0;
		for (uint32_t to = 0; to < m; ++to) {
			const uint32_t i = (2 + from) * m + to;
			c[from][to] = a.scale[2] * x[i] + a.base[i];
			most = to == 0 ? c[from][to] : fmaxf(most, c[from][to]);
		}
		for (uint32_t to = 0; to < m; ++to) sum += c[from][to] = expf(c[from][to] - most);
		for (uint32_t to = 0; to < m; ++to) c[from][to] = c[from][to] / sum + a.eps;
	}
	for (uint32_t round = 0; round < a.rounds; ++round) {
		for (uint32_t from = 0; round && from < m; ++from) {
			float sum = a.eps;
			for (uint32_t to = 0; to < m; ++to) sum += c[from][to];
			for (uint32_t to = 0; to < m; ++to) c[from][to] /= sum;
		}
		for (uint32_t to = 0; to < m; ++to) {
			float sum = a.eps;
			for (uint32_t from = 0; from < m; ++from) sum += c[from][to];
			for (uint32_t from = 0; from < m; ++from) c[from][to] /= sum;
		}
	}
	for (uint32_t to = 0; to < m; ++to)
		for (uint32_t from = 0; from < m; ++from) a.mix[(uint64_t(t) * m + to) * m + from] = c[from][to];
}

// out[t] = sum of softmax over i of (w . x[i][t] / rms(x[i][t])) * x[i][t]. Grid: one block per token.
__global__ void stream_attend_kernel(StreamAttendArgs a) {
	__shared__ Shared<double, 8> partial, partial_squares;
	__shared__ float shares[KV_MOST_ATTENDED];
	const auto row = [&](uint32_t i) { return a.x + start_of(a.in_x, i, blockIdx.x, a.dim); };
	float most = 0, all = 0;
	for (uint32_t i = 0; i < a.m; ++i) {
		double squares = 0, sum = 0;
		for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
			const double v = double(row(i)[c]);
			squares += v * v, sum += v * double(a.w[c]);
		}
		squares = block_sum(squares, partial_squares) / double(a.dim) + double(a.eps);
		const float score = float(block_sum(sum, partial) / sqrt(squares));
		most = i == 0 ? score : fmaxf(most, score);
		if (threadIdx.x == 0) shares[i] = score;
		__syncthreads(); // sums of the next stream reuse the memory
	}
	for (uint32_t i = 0; i < a.m; ++i) all += expf(shares[i] - most);
	for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
		float sum = 0;
		for (uint32_t i = 0; i < a.m; ++i) sum += expf(shares[i] - most) / all * row(i)[c];
		a.out[uint64_t(blockIdx.x) * a.dim + c] = sum;
	}
}

// The functions of backends/activation.h.
__device__ inline float activation(const ActivateArgs& a, float x) {
	switch (a.function) {
	case 1: return x / (1 + expf(-x));
	case 2: return x / (1 + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
	case 3: return x > 0 ? x * x : 0.f;
	case 4: return 1 / (1 + expf(-x));
	case 5:
		return x > 0 ? x * (a.xielu.positive * x + a.xielu.linear)
		             : a.xielu.negative * (expm1f(fminf(x, a.xielu.limit)) - x) + a.xielu.linear * x;
	case 6: return x / (1 + expf(-1.702f * x));
	case 7: return fminf(fmaxf(x, a.range.low), a.range.high);
	case 8: return softplus(x);
	case 9: return fmaxf(x, 0.f);
	case 10: return 0.5f * x * erfcf(-0.70710678f * x);
	default: return x;
	}
}

// v = scale * function(x) * y, then the cap; out = v or out + v. Grid: one thread per element, x then y.
__global__ void activate_kernel(ActivateArgs a) {
	const uint64_t i = (uint64_t(blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
	if (i >= a.n) return;
	float v = a.scale * activation(a, a.x[i / a.each]);
	if (a.y) v *= a.y[i];
	if (a.cap > 0) v = a.cap * tanhf(v / a.cap);
	a.out[i] = a.add ? a.out[i] + v : v;
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

// MiKV eq. (2): sqrt(q_max / k_max) as f16, finite; 1 if that is 0 or there are no keys.
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
	k.layer_norm = {{KV_KERNEL(layer_norm, LayerNormArgs)}};
	k.match_rms = {{KV_KERNEL(match_rms, MatchRmsArgs)}};
	k.gaussian_top_k = {{KV_KERNEL(gaussian_top_k, GaussianTopKArgs)}};
	k.stream_sum = {{KV_KERNEL(stream_sum, StreamSumArgs)}};
	k.stream_mix = {{KV_KERNEL(stream_mix, StreamMixArgs)}};
	k.stream_coefs = {{KV_KERNEL(stream_coefs, StreamCoefsArgs)}};
	k.stream_attend = {{KV_KERNEL(stream_attend, StreamAttendArgs)}};
	k.stream_gate = {{KV_KERNEL(stream_gate, StreamGateArgs)}};
	k.activate = {{KV_KERNEL(activate, ActivateArgs)}};
	k.channel_max = {{KV_KERNEL(channel_max, ChannelMaxArgs)}};
	k.kv_balance = {{KV_KERNEL(kv_balance, KvBalanceArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
