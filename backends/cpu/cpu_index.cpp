// index_score, index_pick, index_live: which tokens a row attends to.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/f16.h"
#include <algorithm>
#include <numeric>

namespace kvrun {

void CpuBackend::compute(const op::IndexScore& o) {
	const auto& [score, q, weights, keys, work, pool] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], D = q.shape[2], capacity = score.shape[1];
	const float *qs = data<float>(q), *weight = weights ? data<float>(weights) : nullptr;
	float* out = data<float>(score);
	std::vector<float> k(D);
	for (uint32_t i = 0; i < work.shape[0]; ++i) {
		const IndexWork w = work_item<IndexWork>(data<uint32_t>(work), i);
		KV_ASSERT(uint64_t(w.row) + w.n_rows <= T && uint64_t(w.key) + w.n / std::max(pool, 1u) <= capacity);
		KV_ASSERT(!pool || w.n % pool == 0);
		const uint16_t* key = halves(keys, w.words, w.n * D);
		for (uint32_t b = 0; b < w.n; ++b, key += D) {
			std::transform(key, key + D, k.begin(), f16_to_f32);
			for (uint32_t t = w.row; t < w.row + w.n_rows; ++t) {
				if (pool) {
					float& best = out[size_t(t) * capacity + w.key + b / pool];
					const float product = dot(qs + size_t(t) * D, k.data(), D);
					best = b % pool ? std::max(best, product) : product;
					continue;
				}
				float sum = 0;
				for (uint32_t h = 0; h < n_heads; ++h) {
					const size_t head = size_t(t) * n_heads + h;
					sum += std::max(dot(qs + head * D, k.data(), D), 0.f) * (weight ? weight[head] : 1.f);
				}
				out[size_t(t) * capacity + w.key + b] = sum;
			}
		}
	}
}

void CpuBackend::compute(const op::IndexPick& o) {
	const uint32_t T = o.score.shape[0], capacity = o.score.shape[1], n_words = o.bits.shape[1], block = o.block;
	const uint32_t* seen = data<uint32_t>(o.seen);
	uint32_t* bits = data<uint32_t>(o.bits);
	std::fill(bits, bits + o.bits.elements(), 0u);
	std::vector<uint32_t> order;
	for (uint32_t t = 0; t < T; ++t, bits += n_words) {
		const uint32_t n = o.blocks(seen[t]), whole = n * block;
		KV_ASSERT(n <= capacity && seen[t] <= uint64_t(n_words) * 32);
		const float* score = data<float>(o.score) + size_t(t) * capacity;
		const auto add = [&](uint32_t token) { bits[token / 32] |= 1u << token % 32; };
		order.resize(n);
		std::iota(order.begin(), order.end(), 0u);
		const uint32_t chosen = std::min(n, o.most);
		if (chosen < n)
			std::ranges::nth_element(order, order.begin() + chosen, [&](uint32_t a, uint32_t b) {
				return score[a] > score[b] || (score[a] == score[b] && a < b);
			});
		for (uint32_t i = 0; i < chosen; ++i)
			for (uint32_t j = 0; j < block; ++j) add(order[i] * block + j);
		for (uint32_t i = whole; i < seen[t]; ++i) add(i);
	}
}

void CpuBackend::compute(const op::IndexLive& o) {
	const uint32_t n_words = o.bits.shape[1];
	uint32_t* tables = data<uint32_t>(o.tables);
	for (uint32_t i = 0; i < o.work.shape[0]; ++i) {
		const LiveWork w = work_item<LiveWork>(data<uint32_t>(o.work), i);
		KV_ASSERT(w.row < o.bits.shape[0]);
		const uint32_t* bits = data<uint32_t>(o.bits) + size_t(w.row) * n_words;
		const uint32_t* live = page_words(tables, o.tables, w.live, w.n_pages * 4);
		page_words(tables, o.tables, w.to, w.n_pages * 4);
		const bool in_order = w.position == LIVE_IN_ORDER;
		const uint32_t* positions =
		    in_order ? nullptr : page_words(tables, o.tables, w.position, w.n_pages * LIVE_POSITIONS);
		for (uint32_t p = 0; p < w.n_pages; ++p)
			for (uint32_t word = 0; word < 4; ++word) {
				uint32_t kept = 0;
				for (uint32_t t = word * 32; t < std::min(w.page, word * 32 + 32); ++t) {
					if (!(live[p * 4 + word] >> t % 32 & 1)) continue;
					const uint32_t at = in_order ? w.first + p * w.page + t : positions[p * LIVE_POSITIONS + t];
					if (at / 32 < n_words && bits[at / 32] >> at % 32 & 1) kept |= 1u << t % 32;
				}
				tables[w.to + p * 4 + word] = kept;
			}
	}
}

} // namespace kvrun
