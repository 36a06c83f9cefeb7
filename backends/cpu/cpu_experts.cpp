// route, sort_slots, expert_matmul, expert_sum: the definitions of the shaders of the same names.
#include "backends/cpu/cpu_backend.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvrun {
namespace {

// NaN and +inf come before all numbers.
struct Larger {
	static float place(float v) { return std::isnan(v) ? INFINITY : v; }
	bool operator()(float a, float b) const { return place(a) > place(b); }
};

// Indices of the n largest of `values`, in descending order; among equal ones the first comes first.
std::vector<uint32_t> n_largest(std::span<const float> values, uint32_t n) {
	std::vector<uint32_t> order(values.size());
	std::iota(order.begin(), order.end(), 0u);
	std::ranges::stable_sort(order, Larger(), [&](uint32_t i) { return values[i]; });
	order.resize(n);
	return order;
}

// A group's best value; two: the sum of its two best.
float group_value(std::span<const float> values, bool two) {
	float best = -INFINITY, second = -INFINITY;
	for (const float v : values) {
		if (v > best)
			second = best, best = v;
		else if (v > second)
			second = v;
	}
	return two ? best + second : best;
}

// Excludes experts outside of the best groups; of equal groups the first is better.
void keep_groups(std::vector<float>& choice, const RouteArgs& a) {
	const size_t n = choice.size() / a.n_groups;
	std::vector<float> values;
	for (size_t g = 0; g < a.n_groups; ++g)
		values.push_back(group_value(std::span(choice).subspan(g * n, n), bool(a.bias)));
	const std::vector<uint32_t> best = n_largest(values, a.used_groups);
	for (size_t e = 0; e < choice.size(); ++e)
		if (std::ranges::find(best, e / n) == best.end()) choice[e] = -INFINITY;
}

// Weight of the last of `chosen` among the logits near its own, without the other chosen ones (Gating::Near).
float near_weight(std::span<const float> logits, std::span<const uint32_t> chosen) {
	const float top = logits[chosen.back()];
	float sum = 0;
	for (uint32_t e = 0; e < logits.size(); ++e) {
		const bool before = std::ranges::find(chosen.first(chosen.size() - 1), e) != chosen.end() - 1;
		const float s = logits[e], away = top - s;
		if (!before && !(away > KV_NEAR * std::max(std::abs(s), top))) sum += std::exp(-away);
	}
	return 1 / sum;
}

float clamped_swiglu(float gate, float up) {
	gate = std::min(gate, KV_GLU_LIMIT);
	return gate / (1 + std::exp(-KV_GLU_ALPHA * gate)) * (std::clamp(up, -KV_GLU_LIMIT, KV_GLU_LIMIT) + 1);
}

} // namespace

void CpuBackend::compute(const op::Route& o) {
	const auto& [ids, weights, logits, a] = o;
	const uint32_t n = logits.shape[1], used = ids.shape[1];
	const float *x = data<float>(logits), *bias = a.bias ? data<float>(a.bias) : nullptr;
	const float* expert_scale = a.expert_scale ? data<float>(a.expert_scale) : nullptr;
	uint32_t* id = data<uint32_t>(ids);
	float* out = data<float>(weights);
	std::vector<float> weight(n), choice(n);
	for (uint32_t t = 0; t < logits.shape[0]; ++t, x += n, id += used, out += used) {
		const float top = *std::max_element(x, x + n);
		float sum = 0;
		for (uint32_t e = 0; e < n; ++e) {
			weight[e] = a.gating == Gating::Sigmoid        ? 1 / (1 + std::exp(-x[e]))
			            : a.gating == Gating::SqrtSoftplus ? float(std::sqrt(softplus(double(x[e]))))
			                                               : std::exp(x[e] - top);
			sum += weight[e];
		}
		for (uint32_t e = 0; e < n; ++e) {
			if (a.gating == Gating::Softmax) weight[e] /= sum;
			choice[e] = bias ? weight[e] + bias[e] : x[e]; // all functions increase with logits
		}
		if (a.n_groups > 1) keep_groups(choice, a);
		if (a.of_tokens) {
			const uint64_t first = uint64_t(data<uint32_t>(a.tokens)[t]) * used;
			KV_ASSERT(first + used <= a.of_tokens.elements());
			std::copy_n(data<uint32_t>(a.of_tokens) + first, used, id);
		} else {
			std::ranges::copy(n_largest(choice, used), id);
		}
		for (uint32_t j = 0; j < used && a.gating == Gating::Near; ++j)
			weight[id[j]] = near_weight({x, n}, {id, j + 1});
		float chosen = 0;
		for (uint32_t j = 0; j < used; ++j) chosen += weight[id[j]];
		const float factor = a.normalise ? a.scale / std::max(chosen, 1e-20f) : a.scale;
		for (uint32_t j = 0; j < used; ++j) out[j] = weight[id[j]] * factor * (expert_scale ? expert_scale[id[j]] : 1);
	}
}

void CpuBackend::compute(const op::SortSlots& o) {
	const auto& [tiles, ids, n_experts] = o;
	const std::span<const uint32_t> id(data<uint32_t>(ids), ids.elements());
	uint32_t* tile = data<uint32_t>(tiles);
	std::fill_n(tile, tiles.elements(), KV_NO_SLOT);
	for (uint32_t e = 0; e < n_experts; ++e) {
		uint32_t n = 0; // slots of the last tile
		for (uint32_t slot = 0; slot < id.size(); ++slot) {
			if (id[slot] != e) continue;
			if (n == KV_EXPERT_TILE) n = 0, tile += KV_TILE_WORDS;
			tile[0] = e;
			tile[1 + n++] = slot;
		}
		if (n) tile += KV_TILE_WORDS;
	}
}

// out[slot][r] = x . w[e * d + r] + bias; a weight row is dequantised once for all slots of its expert.
void CpuBackend::project_experts(const Proj& p, View x, const ExpertRows& e, float* out) {
	const uint32_t d = p.w.shape[0] / e.n_experts, n = p.w.shape[1];
	const size_t stride = weight_row_bytes(p.w.type, n);
	const std::span<const uint32_t> id(data<uint32_t>(e.ids), e.ids.elements());
	const size_t share = id.size() / x.shape[0];
	const std::byte* rows = weight_rows(p.w);
	const float *in = data<float>(x), *bias = p.bias ? data<float>(p.bias) : nullptr;
	row_.resize(n);
	std::vector<std::vector<uint32_t>> slots(e.n_experts);
	for (uint32_t slot = 0; slot < id.size(); ++slot) {
		KV_ASSERT(id[slot] < e.n_experts);
		slots[id[slot]].push_back(slot);
	}
	for (uint32_t expert = 0; expert < e.n_experts; ++expert)
		for (uint32_t r = 0; r < d && !slots[expert].empty(); ++r) {
			const size_t row = size_t(expert) * d + r;
			weight_row(p.w.type, rows + row * stride, row_.data(), n);
			for (const uint32_t slot : slots[expert])
				out[size_t(slot) * d + r] = dot(in + slot / share * n, row_.data(), n) + (bias ? bias[row] : 0.f);
		}
}

void CpuBackend::compute(const op::ExpertMatmul& o) {
	const auto& [projs, x, e, epilogue, decode] = o;
	if (epilogue == Epilogue::None) {
		for (const Proj& p : projs) project_experts(p, x, e, data<float>(p.out));
		return;
	}
	float* g = data<float>(projs[0].out);
	std::vector<float> u(projs[0].out.elements());
	project_experts(projs[0], x, e, g);
	project_experts(projs[1], x, e, u.data());
	for (size_t i = 0; i < u.size(); ++i)
		g[i] = epilogue == Epilogue::SwiGLU ? g[i] / (1 + std::exp(-g[i])) * u[i] : clamped_swiglu(g[i], u[i]);
}

void CpuBackend::compute(const op::ExpertSum& o) {
	const auto& [x, y, weights] = o;
	const size_t dim = x.row_elements(), used = weights.shape[1];
	const float *in = data<float>(y), *w = data<float>(weights);
	float* out = data<float>(x);
	for (size_t t = 0; t < x.shape[0]; ++t, out += dim)
		for (size_t c = 0; c < dim; ++c)
			for (size_t j = 0; j < used; ++j) out[c] += w[t * used + j] * in[(t * used + j) * dim + c];
}

} // namespace kvrun
