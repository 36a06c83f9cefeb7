// score_prompt, score_slots, channel_max, kv_balance: inputs of saliency and channel balancing.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/f16.h"
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

// The factor of a token's score for the length of its key.
static float key_weight(KeyLength by, const float* k, uint32_t D) {
	if (by == KeyLength::Ignored) return 1;
	const float length = std::sqrt(dot(k, k, D));
	return by == KeyLength::Large ? length : 1 / std::max(length, 1e-6f);
}

struct RopePart { // of latent attention: the rotated part of a row's first query, and of keys; none if R is 0
	const float* q = nullptr;
	uint32_t R = 0;
	const float* keys = nullptr; // (tokens, R)
	double dot_with(uint32_t head, uint32_t t) const {
		return R ? double(dot(q + size_t(head) * R, keys + size_t(t) * R, R)) : 0;
	}
};

// score[h][t] += sum over rows of the mean over the heads of kv head h of exp(q . k_t / sqrt(head_dim) - lse), or of 1.
// key(t) gives token t's keys, or null if there is none; `score` has one entry per token.
template <class Key>
static void add_scores(float* score, uint32_t n_tokens, const float* q, const float* lse, uint32_t share, uint32_t D,
                       Saliency s, float softcap, Key key, const RopePart& rope) {
	const ScoreOf score_of{1 / std::sqrt(float(D)), softcap};
	const float weight = 1 / float(share);
	for (uint32_t t = 0; t < n_tokens; ++t) {
		const float* k = key(t);
		if (!k) continue;
		float sum = 0;
		for (uint32_t j = 0; j < share; ++j)
			sum += s.attention ? std::exp(score_of(float(dot(q + size_t(j) * D, k, D) + rope.dot_with(j, t))) - lse[j])
			                   : 1.f;
		score[t] += weight * sum * key_weight(s.key_length, k, D);
	}
}

void CpuBackend::compute(const op::ScorePrompt& o) {
	const auto& [score, q, row_lse, rows, kv, saliency] = o;
	const uint32_t n_heads = q.shape[1], D = q.shape[2], n_kv_heads = kv.k.shape[0], T_cap = kv.k.shape[1];
	const uint32_t n = kv.first + q.shape[0], share = n_heads / n_kv_heads, n_rows = uint32_t(rows.elements());
	const float *qs = data<float>(q), *lse = data<float>(row_lse);
	const uint32_t* row = data<uint32_t>(rows);
	const uint16_t* ks = data<uint16_t>(kv.k);
	float* out = data<float>(score);
	std::vector<float> k(size_t(n) * D), v; // v: rotated keys
	RopePart rope;
	const float* q_rope = kv.softmax.q_rope ? data<float>(kv.softmax.q_rope) : nullptr;
	if (q_rope) rope.R = kv.v.shape[2], v.resize(size_t(n) * rope.R), rope.keys = v.data();
	const uint32_t* seen = kv.seen ? data<uint32_t>(kv.seen) : nullptr;
	const uint32_t sets = kv.seen_sets(q.shape[0]);
	// Clang 14 captures no names of a decomposition
	const auto sees = [&, &kv = kv](uint32_t row_of, uint32_t h, uint32_t t) {
		const uint32_t at = kv.seen_at + t;
		return !seen || seen[size_t(row_of * sets + h % sets) * kv.seen.shape[1] + at / 32] >> at % 32 & 1;
	};
	for (uint32_t h = 0; h < n_kv_heads; ++h) {
		for (size_t i = 0; i < k.size(); ++i) k[i] = f16_to_f32(ks[size_t(h) * T_cap * D + i]);
		for (size_t i = 0; i < v.size(); ++i) v[i] = f16_to_f32(data<uint16_t>(kv.v)[size_t(h) * T_cap * rope.R + i]);
		for (uint32_t i = 0; i < n_rows; ++i) {
			KV_ASSERT(row[i] < q.shape[0]);
			const size_t head = size_t(row[i]) * n_heads + h * share;
			if (q_rope) rope.q = q_rope + head * rope.R;
			add_scores(
			    out + size_t(h) * score.shape[1], kv.first + row[i] + 1, qs + head * D, lse + head, share, D, saliency,
			    kv.softmax.softcap, [&](uint32_t t) { return sees(row[i], h, t) ? &k[size_t(t) * D] : nullptr; }, rope);
		}
	}
}

void CpuBackend::compute(const op::ScoreSlots& o) {
	const View& q = o.q;
	const ScoreArgs& a = o.args;
	const uint32_t n_heads = q.shape[1], D = q.shape[2], n_kv_heads = a.n_kv_heads, share = n_heads / n_kv_heads;
	const float *qs = data<float>(q), *norm = data<float>(o.lse);
	const uint32_t *rows = data<uint32_t>(a.rows), *work = data<uint32_t>(a.work), *tables = data<uint32_t>(a.tables);
	float* score = data<float>(a.score);
	std::vector<float> tile, rotated;
	RopePart rope;
	const float* q_rope = a.q_rope ? data<float>(a.q_rope) : nullptr;
	if (q_rope) rope.R = a.q_rope.shape[2];
	const auto score_page = [&](const ScoreGroup& g, const ScoreWork& w, uint32_t p, uint32_t h) {
		tile.resize(size_t(g.page) * D);
		load_k({n_kv_heads, D}, {.format = {}, .page = g.page, .k_codes = g.k_codes},
		       page_words(tables, a.tables, w.pages + p * 4, 4), h, tile.data());
		if (q_rope) {
			rotated.resize(size_t(g.page) * rope.R), rope.keys = rotated.data();
			load_v({n_kv_heads, rope.R}, {.format = {}, .page = g.page, .v_codes = g.v_codes},
			       page_words(tables, a.tables, w.pages + p * 4, 4), 0, h, rotated.data());
		}
		const uint32_t* live = page_words(tables, a.tables, w.live + h * w.live_stride + p * 4, 4);
		const uint64_t at = w.score + uint64_t(h) * w.score_stride + uint64_t(p) * g.page;
		KV_ASSERT(at + g.page <= a.score.elements());
		for (uint32_t r = w.first; r < w.first + w.n; ++r) {
			KV_ASSERT(r < a.rows.elements() && rows[r] < q.shape[0]);
			const size_t head = size_t(rows[r]) * n_heads + h * share;
			if (q_rope) rope.q = q_rope + head * rope.R;
			add_scores(
			    score + at, g.page, qs + head * D, norm + head, share, D, g.saliency, a.softcap,
			    [&](uint32_t t) { return live[t / 32] >> t % 32 & 1 ? &tile[size_t(t) * D] : nullptr; }, rope);
		}
	};
	for (const ScoreGroup& g : a.groups)
		for (uint32_t i = g.first_work; i < g.first_work + g.n_work; ++i) {
			const ScoreWork w = work_item<ScoreWork>(work, i);
			for (uint32_t p = 0; p < w.n_pages; ++p)
				for (uint32_t h = 0; h < n_kv_heads; ++h) score_page(g, w, p, h);
		}
}

void CpuBackend::compute(const op::ChannelMax& o) {
	const auto& [out, x] = o;
	const uint32_t T = x.shape[0], n_heads = x.shape[1], D = x.shape[2], share = n_heads / out.shape[0];
	const float* in = data<float>(x);
	float* y = data<float>(out);
	for (uint32_t t = 0; t < T; ++t)
		for (uint32_t head = 0; head < n_heads; ++head, in += D)
			for (uint32_t c = 0; c < D; ++c) {
				float& m = y[size_t(head / share) * D + c];
				m = std::max(m, std::fabs(in[c]));
			}
}

void CpuBackend::compute(const op::KvBalance& o) {
	const auto& [out, q_max, k, n] = o;
	const uint32_t n_kv_heads = k.k.shape[0], T_cap = k.k.shape[1], D = k.k.shape[2];
	const float* q = data<float>(q_max);
	const uint16_t* ks = data<uint16_t>(k.k);
	uint16_t* b = data<uint16_t>(out);
	for (uint32_t h = 0; h < n_kv_heads; ++h)
		for (uint32_t c = 0; c < D; ++c) {
			float max = 0;
			for (uint32_t t = 0; t < n; ++t)
				max = std::max(max, std::fabs(f16_to_f32(ks[(size_t(h) * T_cap + t) * D + c])));
			b[size_t(h) * D + c] = balance_factor(q[size_t(h) * D + c], max);
		}
}

} // namespace kvrun
