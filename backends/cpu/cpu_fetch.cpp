// weigh, top_k, scatter, part_share: the tokens that a row attends to most. candidates: the largest logits.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/f16.h"
#include "engine/kv_host/fetch.h"
#include "shared/candidates.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace kvrun {

void CpuBackend::compute(const op::Weigh& o) {
	const View& q = o.q;
	const WeighArgs& a = o.args;
	const uint32_t n_heads = q.shape[1], D = q.shape[2], n_kv_heads = a.n_kv_heads, share = n_heads / n_kv_heads;
	const float *qs = data<float>(q), *norm = data<float>(o.lse);
	const ScoreOf score_of{1 / std::sqrt(float(D)), a.softcap};
	const uint32_t *work = data<uint32_t>(a.work), *tables = data<uint32_t>(a.tables);
	float* weight = data<float>(a.weight);
	const uint32_t R = a.q_rope ? a.q_rope.shape[2] : 0;
	const float* rope = R ? data<float>(a.q_rope) : nullptr;
	std::vector<float> tile, rope_tile, x(size_t(share) * D);
	const auto weigh_pages = [&](const WeighGroup& g, const WeighWork& w, uint32_t h) {
		const size_t head = size_t(w.row) * n_heads + h * share;
		std::copy_n(qs + head * D, x.size(), x.begin());
		if (g.k.prescale == Prescale::Balance) {
			const uint16_t* b = halves(a.balance, w.balance, n_kv_heads * D) + size_t(h) * D;
			for (size_t i = 0; i < x.size(); ++i) x[i] /= f16_to_f32(b[i % D]);
		}
		const AttendGroup pages{.format = {g.k, g.v},
		                        .page = g.page,
		                        .k_codes = g.k_codes,
		                        .v_codes = g.v_codes,
		                        .k_params = g.k_params,
		                        .v_params = g.v_params};
		for (uint32_t p = 0; p < w.n_pages; ++p) {
			const uint32_t* live = page_words(tables, a.tables, w.live + h * w.live_stride + p * 4, 4);
			const uint64_t at = w.weight + uint64_t(h) * w.weight_stride + uint64_t(p) * g.page;
			KV_ASSERT(at + g.page <= a.weight.elements());
			const uint32_t* entry = page_words(tables, a.tables, w.pages + p * 4, 4);
			load_k({n_kv_heads, D}, pages, entry, h, tile.data());
			if (R) load_v({n_kv_heads, R}, pages, entry, 0, h, rope_tile.data());
			const auto product = [&](uint32_t j, uint32_t t) {
				const float latent = dot(&x[size_t(j) * D], &tile[size_t(t) * D], D);
				return R ? latent + dot(rope + (head + j) * R, &rope_tile[size_t(t) * R], R) : latent;
			};
			for (uint32_t t = 0; t < g.page; ++t) {
				float sum = 0;
				const bool there = live[t / 32] >> t % 32 & 1;
				for (uint32_t j = 0; j < share && there; ++j) sum += std::exp(score_of(product(j, t)) - norm[head + j]);
				weight[at + t] = there ? sum / float(share) : -1.f;
			}
		}
	};
	for (const WeighGroup& g : a.groups)
		for (uint32_t i = g.first_work; i < g.first_work + g.n_work; ++i) {
			const WeighWork w = work_item<WeighWork>(work, i);
			KV_ASSERT(w.row < q.shape[0]);
			tile.resize(size_t(g.page) * D), rope_tile.resize(size_t(g.page) * R);
			for (uint32_t h = 0; h < n_kv_heads; ++h) weigh_pages(g, w, h);
		}
}

void CpuBackend::compute(const op::TopK& o) {
	const auto& [picks, weight, work] = o;
	for (uint32_t i = 0; i < work.shape[0]; ++i) {
		const TopWork w = work_item<TopWork>(data<uint32_t>(work), i);
		KV_ASSERT(uint64_t(w.weights) + w.n <= weight.elements() && uint64_t(w.picks) + w.k <= picks.elements());
		const std::vector<uint32_t> best = largest({data<float>(weight) + w.weights, w.n}, w.k);
		uint32_t* out = data<uint32_t>(picks) + w.picks;
		std::fill(std::copy(best.begin(), best.end(), out), out + w.k, kNone);
	}
}

void CpuBackend::compute(const op::Candidates& o) {
	const auto& [list, block_max, x, k] = o;
	const uint32_t n = x.shape[1], blocks = block_max.shape[1];
	std::vector<float> maxima(blocks);
	for (uint32_t row = 0; row < x.shape[0]; ++row) {
		const std::span<const float> values(data<float>(x) + size_t(row) * n, n);
		uint32_t* out = data<uint32_t>(list) + size_t(row) * KV_CANDIDATE_WORDS;
		out[0] = KV_CANDIDATES + 1;
		if (k > blocks || std::ranges::any_of(values, [](float v) { return std::isnan(v) || v == INFINITY; })) continue;
		for (uint32_t b = 0; b < blocks; ++b)
			maxima[b] = std::ranges::max(values.subspan(size_t(b) * KV_LOGIT_BLOCK)
			                                 .first(std::min<size_t>(KV_LOGIT_BLOCK, n - size_t(b) * KV_LOGIT_BLOCK)));
		std::ranges::nth_element(maxima, maxima.begin() + (k - 1), std::greater<>());
		const float bound = maxima[k - 1];
		const auto found = std::ranges::count_if(values, [&](float v) { return v >= bound; });
		if (bound == -INFINITY || found > KV_CANDIDATES) continue;
		*out++ = uint32_t(found);
		for (uint32_t i = 0; i < n; ++i)
			if (values[i] >= bound) *out++ = i, *out++ = std::bit_cast<uint32_t>(values[i]);
	}
}

void CpuBackend::compute(const op::Scatter& o) {
	const auto& [words, list] = o;
	const uint32_t* entry = data<uint32_t>(list);
	uint32_t* to = data<uint32_t>(words);
	for (uint32_t i = 0; i < list.shape[0]; ++i, entry += 2) {
		KV_ASSERT(entry[0] < words.elements());
		to[entry[0]] = entry[1];
	}
}

void CpuBackend::compute(const op::PartShare& o) {
	const auto& [out, parts, work] = o;
	const uint32_t n_heads = parts.shape[1], D = parts.shape[2] - 2;
	const float* state = data<float>(parts);
	float* share = data<float>(out);
	for (uint32_t i = 0; i < work.shape[0]; ++i) {
		const ShareWork w = work_item<ShareWork>(data<uint32_t>(work), i);
		KV_ASSERT(uint64_t(w.first) + w.n <= parts.shape[0] && w.inside <= w.n);
		for (uint32_t h = 0; h < n_heads; ++h) {
			const auto part = [&](uint32_t p) { return state + (size_t(w.first + p) * n_heads + h) * (D + 2) + D; };
			float top = -INFINITY, inside = 0, all = 0;
			for (uint32_t p = 0; p < w.n; ++p) top = std::max(top, part(p)[0]);
			for (uint32_t p = 0; p < w.n; ++p) {
				const float x = part(p)[1] > 0 ? part(p)[1] * std::exp(part(p)[0] - top) : 0;
				all += x;
				if (p < w.inside) inside += x;
			}
			share[size_t(i) * n_heads + h] = all > 0 ? inside / all : 0;
		}
	}
}

} // namespace kvrun
