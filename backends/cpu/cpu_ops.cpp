// embed, norms, sums of streams, activate, matmul, copy: the definitions of the shaders of the same names.
#include "backends/cpu/cpu_backend.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvrun {

// out[t] = table[tokens[t]]
void CpuBackend::compute(const op::Embed& o) {
	const auto& [out, table, tokens] = o;
	const size_t stride = weight_row_bytes(table.type, table.shape[1]), dim = table.shape[1];
	const uint32_t T = out.shape[0];
	const std::byte* rows = weight_rows(table);
	const uint32_t* id = data<uint32_t>(tokens);
	float* y = data<float>(out);
	for (uint32_t t = 0; t < T; ++t) {
		KV_ASSERT(id[t] < table.shape[0]);
		weight_row(table.type, rows + id[t] * stride, y + t * dim, dim);
	}
}

// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w
void CpuBackend::compute(const op::RmsNorm& o) {
	const auto& [out, x, w, eps] = o;
	const size_t dim = x.row_elements();
	const float *in = data<float>(x), *weight = data<float>(w);
	float* y = data<float>(out);
	for (uint32_t t = 0; t < x.shape[0]; ++t, in += dim, y += dim) {
		double sum = 0;
		for (size_t i = 0; i < dim; ++i) sum += double(in[i]) * double(in[i]);
		const float scale = float(1 / std::sqrt(sum / double(dim) + double(eps)));
		const float* own = weight + t % o.groups() * dim;
		for (size_t i = 0; i < dim; ++i) y[i] = in[i] * scale * own[i];
	}
}

// out[t] = (x[t] - mean) / sqrt(variance + eps) * w + b
void CpuBackend::compute(const op::LayerNorm& o) {
	const auto& [out, x, w, b, eps] = o;
	const size_t dim = x.row_elements();
	const float *in = data<float>(x), *weight = data<float>(w), *bias = b ? data<float>(b) : nullptr;
	float* y = data<float>(out);
	for (uint32_t t = 0; t < x.shape[0]; ++t, in += dim, y += dim) {
		double sum = 0, squares = 0;
		for (size_t i = 0; i < dim; ++i) sum += double(in[i]);
		const double mean = sum / double(dim);
		for (size_t i = 0; i < dim; ++i) squares += (double(in[i]) - mean) * (double(in[i]) - mean);
		const double scale = 1 / std::sqrt(squares / double(dim) + double(eps));
		const float* own = weight + t % o.groups() * dim;
		const float* shift = bias ? bias + t % o.groups() * dim : nullptr;
		for (size_t i = 0; i < dim; ++i)
			y[i] = float((double(in[i]) - mean) * scale) * own[i] + (shift ? shift[i] : 0.f);
	}
}

// out[t] = x[t] * w * rms(like[t]) / rms(x[t])
void CpuBackend::compute(const op::MatchRms& o) {
	const auto& [out, x, w, like, eps] = o;
	const size_t dim = x.row_elements();
	const float *in = data<float>(x), *other = data<float>(like), *weight = data<float>(w);
	float* y = data<float>(out);
	for (uint32_t t = 0; t < x.shape[0]; ++t, in += dim, other += dim, y += dim) {
		double mine = 0, theirs = 0;
		for (size_t i = 0; i < dim; ++i) {
			mine += double(in[i]) * double(in[i]);
			theirs += double(other[i]) * double(other[i]);
		}
		const float scale = float(std::sqrt((theirs / double(dim) + double(eps)) / (mine / double(dim) + double(eps))));
		for (size_t i = 0; i < dim; ++i) y[i] = in[i] * scale * weight[i];
	}
}

// out[t] = max(x[t] - (mean + cut * deviation), 0)
void CpuBackend::compute(const op::GaussianTopK& o) {
	const auto& [out, x, cut] = o;
	const size_t n = x.row_elements();
	const float* in = data<float>(x);
	float* y = data<float>(out);
	for (uint32_t t = 0; t < x.shape[0]; ++t, in += n, y += n) {
		double sum = 0, squares = 0;
		for (size_t i = 0; i < n; ++i) sum += double(in[i]);
		const double mean = sum / double(n);
		for (size_t i = 0; i < n; ++i) squares += (double(in[i]) - mean) * (double(in[i]) - mean);
		const double low = mean + double(cut) * std::sqrt(squares / double(n));
		for (size_t i = 0; i < n; ++i) y[i] = float(std::max(double(in[i]) - low, 0.));
	}
}

// x[i][t] += sum of w[t][i][j] * y[j][t]
void CpuBackend::compute(const op::StreamSum& o) {
	const auto& [x, y, w, adds] = o;
	const size_t T = w.shape[0], m = w.shape[1], k = w.shape[2], dim = x.dim();
	const float *from = data<float>(y.v), *weight = data<float>(w);
	float* to = data<float>(x.v);
	const auto at = [&](const StreamRows& s, size_t stream, size_t t) {
		return (stream * s.stream_stride() + (s.first + t) * s.row_stride()) * dim;
	};
	for (size_t t = 0; t < T; ++t, weight += m * k)
		for (size_t c = 0; c < dim; ++c) {
			float v[kMostStreams];
			for (size_t j = 0; j < k; ++j) v[j] = from[at(y, j, t) + c];
			for (size_t i = 0; i < m; ++i) {
				float& sum = to[at(x, i, t) + c];
				if (!adds) sum = 0;
				for (size_t j = 0; j < k; ++j) sum += weight[i * k + j] * v[j];
			}
		}
}

static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// out[t] = sum of sigmoid(gate[t][i]) * x[t][i]
void CpuBackend::compute(const op::StreamMix& o) {
	const auto& [out, x, gate] = o;
	const size_t T = x.shape[0], m = x.shape[1], dim = x.shape[2];
	const float *in = data<float>(x), *g = data<float>(gate);
	float* y = data<float>(out);
	for (size_t t = 0; t < T; ++t)
		for (size_t c = 0; c < dim; ++c) {
			double sum = 0;
			for (size_t i = 0; i < m; ++i) {
				const size_t at = (t * m + i) * dim + c;
				sum += sigmoid(double(g[at])) * double(in[at]);
			}
			y[t * dim + c] = float(sum);
		}
}

// out[t][i] = sigmoid(root(key[t][i] . query[t][i] / sqrt(dim))) * value[t]
void CpuBackend::compute(const op::StreamGate& o) {
	const auto& [out, key, query, value] = o;
	const size_t T = key.shape[0], m = key.shape[1], dim = key.shape[2];
	const float *k = data<float>(key), *q = data<float>(query), *v = data<float>(value);
	float* y = data<float>(out);
	for (size_t row = 0; row < T * m; ++row, k += dim, q += dim, y += dim) {
		double s = 0;
		for (size_t c = 0; c < dim; ++c) s += double(k[c]) * double(q[c]);
		s /= std::sqrt(double(dim));
		const double root = std::sqrt(std::max(std::abs(s), double(KV_GATE_LEAST)));
		const double share = sigmoid(s > 0 ? root : s < 0 ? -root : 0);
		const float* own = v + row / m * dim;
		for (size_t c = 0; c < dim; ++c) y[c] = float(share * double(own[c]));
	}
}

void CpuBackend::compute(const op::StreamCoefs& o) {
	const size_t T = o.x.shape[0], m = o.streams(), n = o.x.row_elements();
	const double eps = double(o.how.eps);
	const float *scale = data<float>(o.scale), *base = data<float>(o.base);
	for (size_t t = 0; t < T; ++t) {
		const float* x = data<float>(o.x) + t * n;
		const auto at = [&](size_t i) {
			return double(scale[std::min(i / m, size_t(2))]) * double(x[i]) + double(base[i]);
		};
		for (size_t i = 0; i < m; ++i) {
			data<float>(o.pre)[t * m + i] = float(sigmoid(at(i)) + eps);
			if (o.post)
				data<float>(o.post)[t * m + i] =
				    float(double(o.how.post_scale) * sigmoid(at(m + i)) + double(o.how.post_eps));
		}
		if (!o.mix) continue;
		double mix[kMostStreams][kMostStreams]; // by `from`, then by `to`
		for (size_t from = 0; from < m; ++from) {
			double most = -INFINITY, sum = 0;
			for (size_t to = 0; to < m; ++to) most = std::max(most, mix[from][to] = at((2 + from) * m + to));
			for (size_t to = 0; to < m; ++to) sum += mix[from][to] = std::exp(mix[from][to] - most);
			for (size_t to = 0; to < m; ++to) mix[from][to] = mix[from][to] / sum + eps;
		}
		for (uint32_t round = 0; round < o.how.rounds; ++round) {
			for (size_t from = 0; round && from < m; ++from) {
				double sum = eps;
				for (size_t to = 0; to < m; ++to) sum += mix[from][to];
				for (size_t to = 0; to < m; ++to) mix[from][to] /= sum;
			}
			for (size_t to = 0; to < m; ++to) {
				double sum = eps;
				for (size_t from = 0; from < m; ++from) sum += mix[from][to];
				for (size_t from = 0; from < m; ++from) mix[from][to] /= sum;
			}
		}
		for (size_t to = 0; to < m; ++to)
			for (size_t from = 0; from < m; ++from) data<float>(o.mix)[(t * m + to) * m + from] = float(mix[from][to]);
	}
}

// out[t] = sum of softmax over i of (w . x[i][t] / rms(x[i][t])) * x[i][t]
void CpuBackend::compute(const op::StreamAttend& o) {
	const auto& [out, x, w, eps] = o;
	const size_t T = out.shape[0], m = x.streams(), dim = x.dim();
	const float *from = data<float>(x.v), *weight = data<float>(w);
	for (size_t t = 0; t < T; ++t) {
		const auto row = [&](size_t i) {
			return from + (i * x.stream_stride() + (x.first + t) * x.row_stride()) * dim;
		};
		double shares[kMostAttended], most = -INFINITY, all = 0;
		for (size_t i = 0; i < m; ++i) {
			double squares = 0, score = 0;
			for (size_t c = 0; c < dim; ++c) {
				const double v = double(row(i)[c]);
				squares += v * v, score += v * double(weight[c]);
			}
			most = std::max(most, shares[i] = score / std::sqrt(squares / double(dim) + double(eps)));
		}
		for (size_t i = 0; i < m; ++i) all += shares[i] = std::exp(shares[i] - most);
		for (size_t c = 0; c < dim; ++c) {
			double sum = 0;
			for (size_t i = 0; i < m; ++i) sum += shares[i] / all * double(row(i)[c]);
			data<float>(out)[t * dim + c] = float(sum);
		}
	}
}

static double xielu(const Xielu& f, double x) {
	if (x > 0) return x * (double(f.positive) * x + double(f.linear));
	return double(f.negative) * (std::expm1(std::min(x, double(f.limit))) - x) + double(f.linear) * x;
}

static double activation(const Elementwise& e, double x) {
	switch (e.function) {
	case Activation::None: return x;
	case Activation::Silu: return x / (1 + std::exp(-x));
	case Activation::GeluTanh: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
	case Activation::Relu2: return x > 0 ? x * x : 0;
	case Activation::Sigmoid: return sigmoid(x);
	case Activation::Xielu: return xielu(e.xielu, x);
	case Activation::GeluQuick: return x / (1 + std::exp(-1.702 * x));
	case Activation::Clamp: return std::min(std::max(x, double(e.range.low)), double(e.range.high));
	case Activation::Softplus: return softplus(x);
	case Activation::Relu: return std::max(x, 0.);
	case Activation::Gelu: return 0.5 * x * std::erfc(-x * 0.7071067811865476);
	}
	return x;
}

void CpuBackend::compute(const op::Activate& o) {
	const auto& [out, x, y, e] = o;
	const float *a = data<float>(x), *b = y ? data<float>(y) : nullptr;
	float* to = data<float>(out);
	for (size_t i = 0; i < out.elements(); ++i) {
		double v = double(e.scale) * activation(e, double(a[i / e.each])) * (b ? double(b[i]) : 1);
		if (e.cap > 0) v = double(e.cap) * std::tanh(v / double(e.cap));
		to[i] = e.add ? to[i] + float(v) : float(v);
	}
}

// out[t][r] (+)= x[t] . w[r] + bias[r]; a weight row is dequantised once for all t.
void CpuBackend::project(const Proj& p, View x, float* out, bool add) {
	const uint32_t T = x.shape[0], d = p.w.shape[0], n = p.w.shape[1];
	const size_t stride = weight_row_bytes(p.w.type, n);
	const std::byte* rows = weight_rows(p.w);
	const float* in = data<float>(x);
	const float* bias = p.bias ? data<float>(p.bias) : nullptr;
	row_.resize(n);
	for (uint32_t r = 0; r < d; ++r) {
		const float* w = row_.data();
		if (p.w.type == DType::F32)
			w = reinterpret_cast<const float*>(rows + r * stride);
		else
			weight_row(p.w.type, rows + r * stride, row_.data(), n);
		for (uint32_t t = 0; t < T; ++t) {
			const float y = dot(in + size_t(t) * n, w, n) + (bias ? bias[r] : 0.f);
			float& o = out[size_t(t) * d + r];
			o = add ? o + y : y;
		}
	}
}

void CpuBackend::compute(const op::Matmul& o) {
	const auto& [projs, x, epilogue, decode] = o;
	if (epilogue != Epilogue::SwiGLU) {
		for (const Proj& p : projs) project(p, x, data<float>(p.out), epilogue == Epilogue::Add);
		return;
	}
	float* g = data<float>(projs[0].out);
	std::vector<float> u(projs[0].out.elements());
	project(projs[0], x, g, false);
	project(projs[1], x, u.data(), false);
	for (size_t i = 0; i < u.size(); ++i) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i]; // silu(g) * u
}

void CpuBackend::compute(const op::NormMatmul& o) {
	compute(o.norm());
	compute(o.product());
}

void CpuBackend::compute(const op::Copy& o) {
	const auto& [dst, src] = o;
	const size_t n = src.bytes();
	std::memmove(bytes_at(*dst.buf, dst.at, n), bytes_at(*src.buf, src.at, n), n);
}

} // namespace kvrun
