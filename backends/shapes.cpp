// Shape checks of every op: wrong use of a backend ends here, with the condition that does not hold.
#include "backends/shapes.h"
#include "engine/core/round.h"
#include "shared/candidates.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

namespace {

bool is_f32(const View& v) { return v.buf && v.type == DType::F32; }
bool is_u32(const View& v) { return v.buf && v.type == DType::U32; }
bool is_f16(const View& v) { return v.buf && v.type == DType::F16; }
bool same_shape(const View& a, const View& b) { return std::equal(a.shape, a.shape + 4, b.shape); }

void check_heads(const View& q, uint32_t n_kv_heads, uint32_t head_dim) {
	KV_ASSERT(is_f32(q) && q.shape[3] == 1 && q.shape[0] >= 1);
	KV_ASSERT(n_kv_heads >= 1 && q.shape[1] % n_kv_heads == 0);
	KV_ASSERT(q.shape[2] == head_dim && head_dim % 2 == 0 && head_dim > 0);
}

void check_dst(const KvDst& d, uint32_t T, uint32_t n_kv_heads) {
	KV_ASSERT(is_u32(d.k) && is_u32(d.v) && is_u32(d.at) && d.k_word_stride >= 1);
	KV_ASSERT(d.at.elements() == size_t(T) * n_kv_heads * 2);
}

bool is_balance(const View& v, uint32_t n_kv_heads, uint32_t head_dim) {
	return is_f16(v) && v.elements() == size_t(n_kv_heads) * head_dim;
}
bool is_lse(const View& v, const View& q) { return is_f32(v) && v.elements() == size_t(q.shape[0]) * q.shape[1]; }

void check_quant(const Quant& q, bool is_k, uint32_t n_kv_heads, uint32_t head_dim) {
	KV_ASSERT(q.bits <= 4 || q.bits == 8 || q.bits == 16);
	if (q.bits == 0 || q.bits == 16) return;
	KV_ASSERT(is_k || q.scale != Scale::PerChannel);
	KV_ASSERT(q.scale != Scale::PerToken || (q.group > 0 && n_kv_heads * head_dim % q.group == 0));
	KV_ASSERT(q.prescale == Prescale::None || q.prescale == (is_k ? Prescale::Balance : Prescale::SqrtMax));
	KV_ASSERT(q.scale != Scale::Codebook || (q.bits <= 4 && q.prescale == Prescale::None));
	KV_ASSERT(q.param_bits == 16 || (q.param_bits == 8 && q.bits <= 4 && q.prescale != Prescale::SqrtMax));
	KV_ASSERT(q.param_bits == 16 || q.scale == (is_k ? Scale::PerChannel : Scale::PerToken) ||
	          q.scale == Scale::Codebook);
	KV_ASSERT(!q.mean || (is_k && q.scale == Scale::Codebook));
	KV_ASSERT(!q.rotate || q.scale == Scale::Codebook);
}
void check_format(const Format& f, uint32_t n_kv_heads, uint32_t head_dim) {
	check_quant(f.k, true, n_kv_heads, head_dim);
	check_quant(f.v, false, n_kv_heads, head_dim);
}

void check_rows(const KvRows& kv) {
	KV_ASSERT(is_f16(kv.k) && is_f16(kv.v) && same_shape(kv.k, kv.v) && kv.k.shape[3] == 1 && kv.k.shape[2] % 2 == 0);
}

void check_softmax(const Softmax& s, const View& q) {
	KV_ASSERT(s.softcap >= 0 && std::isfinite(s.softcap));
	KV_ASSERT(!s.sinks || (is_f32(s.sinks) && s.sinks.elements() == q.shape[1]));
}

bool is_page(uint32_t page) { return page == 32 || page == 64 || page == 128; }

void check_read(const View& q, const KvRead& kv) {
	check_heads(q, kv.n_kv_heads, q.shape[2]);
	check_softmax(kv.softmax, q);
	KV_ASSERT(is_u32(kv.work) && kv.work.row_elements() == ATTEND_WORDS && kv.item_rows > 0);
	KV_ASSERT(is_u32(kv.tables) && is_u32(kv.row_parts) && kv.row_parts.elements() == size_t(q.shape[0]) * 2);
	KV_ASSERT(is_f32(kv.parts) && kv.parts.row_elements() == size_t(q.shape[1]) * (q.shape[2] + 2));
	for (const AttendGroup& g : kv.groups) {
		KV_ASSERT(is_page(g.page) && uint64_t(g.first_work) + g.n_work <= kv.work.shape[0]);
		KV_ASSERT(is_u32(g.k_codes) && is_u32(g.v_codes));
		check_format(g.format, kv.n_kv_heads, q.shape[2]);
		KV_ASSERT(g.format.k.bits > 0 && g.format.v.bits > 0);
		KV_ASSERT(g.format.k.bits == 16 || is_u32(g.k_params));
		KV_ASSERT(g.format.v.bits == 16 || is_u32(g.v_params));
		KV_ASSERT(g.format.k.prescale != Prescale::Balance || is_u32(kv.balance));
		KV_ASSERT(g.format.v.prescale != Prescale::SqrtMax || is_u32(g.v_factors));
	}
}

} // namespace

void check_embed(const View& out, const View& table, const View& tokens) {
	KV_ASSERT(is_f32(out) && is_u32(tokens) && table.buf && table.type != DType::U32);
	KV_ASSERT(tokens.elements() == out.shape[0] && out.shape[0] >= 1);
	KV_ASSERT(out.row_elements() == table.shape[1] && table.row_elements() == table.shape[1]);
	KV_ASSERT(table.shape[1] % dtype_info(table.type).block == 0);
}

void check_rmsnorm(const View& out, const View& x, const View& w) {
	KV_ASSERT(is_f32(out) && is_f32(x) && is_f32(w));
	KV_ASSERT(x.shape[0] >= 1 && out.shape[0] == x.shape[0] && out.row_elements() == x.row_elements());
	KV_ASSERT(w.elements() == x.row_elements());
}

void check_layer_norm(const View& out, const View& x, const View& w, const View& b) {
	check_rmsnorm(out, x, w);
	KV_ASSERT(!b || (is_f32(b) && b.elements() == x.row_elements()));
}

void check_activate(const View& out, const View& x, const View& y, const Elementwise& e) {
	KV_ASSERT(is_f32(out) && is_f32(x) && out.elements() == x.elements());
	KV_ASSERT(!y || (is_f32(y) && y.elements() == x.elements()));
	KV_ASSERT(e.cap >= 0);
}

void check_matmul(std::span<const Proj> projs, const View& x, Epilogue epilogue) {
	KV_ASSERT(!projs.empty() && is_f32(x) && x.shape[0] >= 1 && epilogue != Epilogue::ClampedSwiGLU);
	for (size_t i = 0; i < projs.size(); ++i) {
		const auto& [out, w, bias] = projs[i];
		KV_ASSERT(w.buf && w.type != DType::U32 && w.row_elements() == w.shape[1]);
		KV_ASSERT(w.shape[1] == x.row_elements() && w.shape[1] % dtype_info(w.type).block == 0);
		KV_ASSERT(!bias || (is_f32(bias) && bias.elements() == w.shape[0]));
		if (epilogue == Epilogue::SwiGLU && i == 1) continue; // its out is unused
		KV_ASSERT(is_f32(out) && out.shape[0] == x.shape[0] && out.row_elements() == w.shape[0]);
	}
	KV_ASSERT(epilogue != Epilogue::SwiGLU || (projs.size() == 2 && projs[0].w.shape[0] == projs[1].w.shape[0]));
}

void check_route(const View& ids, const View& weights, const View& logits, const RouteArgs& a) {
	const uint32_t T = logits.shape[0], n = logits.shape[1], used = ids.shape[1];
	KV_ASSERT(is_u32(ids) && is_f32(weights) && is_f32(logits) && T >= 1 && ids.shape[0] == T);
	KV_ASSERT(same_shape(ids, weights) && logits.row_elements() == n && ids.row_elements() == used);
	KV_ASSERT(used >= 1 && used <= n && used <= KV_MOST_USED && n <= KV_MOST_EXPERTS);
	KV_ASSERT(!a.bias || (is_f32(a.bias) && a.bias.elements() == n));
	KV_ASSERT(a.used_groups >= 1 && a.used_groups <= a.n_groups && a.n_groups <= KV_MOST_GROUPS);
	KV_ASSERT(n % a.n_groups == 0 && uint64_t(n / a.n_groups) * a.used_groups >= used);
}

void check_sort_slots(const View& tiles, const View& ids, uint32_t n_experts) {
	KV_ASSERT(is_u32(tiles) && is_u32(ids) && ids.elements() >= 1 && n_experts >= 1 && n_experts <= KV_MOST_EXPERTS);
	KV_ASSERT(tiles.shape[0] == expert_tiles(uint32_t(ids.elements()), n_experts));
	KV_ASSERT(tiles.row_elements() == KV_TILE_WORDS);
}

void check_expert_matmul(std::span<const Proj> projs, const View& x, const ExpertRows& e, Epilogue epilogue,
                         bool decode) {
	const bool gated = epilogue != Epilogue::None;
	KV_ASSERT(epilogue != Epilogue::Add && is_f32(x) && is_u32(e.ids) && e.ids.row_elements() == e.ids.shape[1]);
	const uint32_t T = e.ids.shape[0], used = e.ids.shape[1], n_experts = e.n_experts;
	KV_ASSERT(T >= 1 && used >= 1 && (x.shape[0] == T || x.shape[0] == T * used));
	KV_ASSERT(n_experts >= 1 && n_experts <= KV_MOST_EXPERTS && used <= KV_MOST_USED);
	KV_ASSERT(bool(e.tiles) == !decode);
	if (!decode) check_sort_slots(e.tiles, e.ids, n_experts);
	KV_ASSERT(gated ? projs.size() == 2 && projs[0].w.shape[0] == projs[1].w.shape[0] : !projs.empty());
	for (const auto& [out, w, bias] : projs) {
		KV_ASSERT(w.buf && w.type != DType::U32 && w.row_elements() == w.shape[1] && w.shape[0] % n_experts == 0);
		KV_ASSERT(w.shape[1] == x.row_elements() && w.shape[1] % dtype_info(w.type).block == 0);
		KV_ASSERT(!bias || (is_f32(bias) && bias.elements() == w.shape[0]));
		if (gated && &w == &projs[1].w) continue; // its out is unused
		KV_ASSERT(is_f32(out) && out.shape[0] == T && out.shape[1] == used);
		KV_ASSERT(out.row_elements() == size_t(used) * (w.shape[0] / n_experts));
	}
}

void check_expert_sum(const View& x, const View& y, const View& weights) {
	KV_ASSERT(is_f32(x) && is_f32(y) && is_f32(weights) && x.shape[0] >= 1 && y.shape[0] == x.shape[0]);
	KV_ASSERT(weights.shape[0] == x.shape[0] && weights.row_elements() == weights.shape[1]);
	KV_ASSERT(y.shape[1] == weights.shape[1] && y.row_elements() == x.row_elements() * y.shape[1]);
}

void check_rope_store(const View& q, const View& k, const View& v, const RopeArgs& rope, const HeadNorm& norm,
                      const KvDst& dst) {
	check_heads(q, k.shape[1], k.shape[2]);
	KV_ASSERT(is_f32(k) && is_f32(v) && k.shape[0] == q.shape[0] && k.shape[3] == 1 && same_shape(k, v));
	KV_ASSERT(rope.rotary_dim % 2 == 0 && rope.rotary_dim <= q.shape[2]);
	KV_ASSERT(is_f32(rope.table) && rope.table.elements() == size_t(q.shape[0]) * rope.rotary_dim);
	KV_ASSERT(!norm.q || (is_f32(norm.q) && norm.q.elements() == q.shape[2]));
	KV_ASSERT(!norm.k || (is_f32(norm.k) && norm.k.elements() == q.shape[2]));
	check_dst(dst, q.shape[0], k.shape[1]);
}

void check_kv_store(const KvRows& src, uint32_t n, const KvDst& dst) {
	check_rows(src);
	KV_ASSERT(n >= 1 && uint64_t(src.first) + n <= src.k.shape[1]);
	check_dst(dst, n, src.k.shape[0]);
}

void check_attend(const View& out, const View& lse, const View& q, const KvRead& kv) {
	check_read(q, kv);
	KV_ASSERT(is_f32(out) && out.elements() == q.elements() && (!lse || is_lse(lse, q)));
}

void check_attend_prompt(const View& out, const View& lse, const View& q, const KvRows& own, const KvRead* older) {
	KV_ASSERT(is_f32(out) && out.elements() == q.elements() && (!lse || is_lse(lse, q)));
	check_rows(own);
	check_heads(q, own.k.shape[0], own.k.shape[2]);
	check_softmax(own.softmax, q);
	KV_ASSERT(uint64_t(own.first) + q.shape[0] <= own.k.shape[1]);
	if (!older) return;
	KV_ASSERT(older->softmax.softcap == own.softmax.softcap && bool(older->softmax.sinks) == bool(own.softmax.sinks));
	KV_ASSERT(own.window == 0);
	check_read(q, *older);
	KV_ASSERT(older->n_kv_heads == own.k.shape[0]);
}

void check_copy(const View& dst, const View& src) {
	KV_ASSERT(dst.buf && src.buf && dst.type == src.type && !is_quantised(src.type) &&
	          dst.elements() == src.elements());
}

void check_kv_pack(const KvRows& src, const PackArgs& a) {
	check_rows(src);
	const uint32_t n_kv_heads = src.k.shape[0], head_dim = src.k.shape[2];
	check_format(a.format, n_kv_heads, head_dim);
	KV_ASSERT(a.format.k.bits < 16 && a.format.v.bits < 16 && (a.format.k.bits || a.format.v.bits));
	KV_ASSERT(is_page(a.page));
	KV_ASSERT(is_u32(a.sources) && is_u32(a.work) && a.work.row_elements() == PACK_WORDS);
	KV_ASSERT(a.format.k.bits == 0 || is_u32(a.k_params));
	KV_ASSERT(a.format.v.bits == 0 || is_u32(a.v_params));
	KV_ASSERT(!a.k_block || (a.format.k.scale == Scale::PerChannel && a.format.k.eta == 0));
	KV_ASSERT(a.format.k.prescale != Prescale::Balance || is_u32(a.balance));
	KV_ASSERT(a.format.v.prescale != Prescale::SqrtMax || is_u32(a.v_factors));
}

void check_kv_block(const KvRows& src, const BlockArgs& a) {
	check_rows(src);
	check_format(a.format, src.k.shape[0], src.k.shape[2]);
	KV_ASSERT(is_u32(a.sources) && is_u32(a.work) && a.work.row_elements() == BLOCK_WORDS && is_u32(a.words));
	KV_ASSERT(a.format.k.prescale != Prescale::Balance || is_u32(a.balance));
}

void check_score_prompt(const View& score, const View& q, const View& lse, const View& rows, const KvRows& kv) {
	check_rows(kv);
	check_heads(q, kv.k.shape[0], kv.k.shape[2]);
	KV_ASSERT(is_u32(rows) && is_lse(lse, q) && uint64_t(kv.first) + q.shape[0] <= kv.k.shape[1]);
	KV_ASSERT(is_f32(score) && score.shape[0] == kv.k.shape[0] && score.row_elements() == score.shape[1]);
	KV_ASSERT(score.shape[1] >= kv.first + q.shape[0]);
}

void check_score_slots(const View& q, const View& lse, const ScoreArgs& a) {
	check_heads(q, a.n_kv_heads, q.shape[2]);
	KV_ASSERT(is_u32(a.work) && a.work.row_elements() == SCORE_WORDS && is_u32(a.rows) && is_u32(a.tables));
	KV_ASSERT(is_lse(lse, q) && is_f32(a.score));
	for (const ScoreGroup& g : a.groups)
		KV_ASSERT(is_page(g.page) && is_u32(g.k_codes) && uint64_t(g.first_work) + g.n_work <= a.work.shape[0]);
}

void check_weigh(const View& q, const View& lse, const WeighArgs& a) {
	check_heads(q, a.n_kv_heads, q.shape[2]);
	KV_ASSERT(is_u32(a.work) && a.work.row_elements() == WEIGH_WORDS && is_u32(a.tables));
	KV_ASSERT(is_lse(lse, q) && is_f32(a.weight));
	for (const WeighGroup& g : a.groups) {
		KV_ASSERT(is_page(g.page) && is_u32(g.k_codes) && uint64_t(g.first_work) + g.n_work <= a.work.shape[0]);
		KV_ASSERT(g.k.bits == 16 || is_u32(g.k_params));
		KV_ASSERT(g.k.prescale != Prescale::Balance || is_u32(a.balance));
	}
}

void check_top_k(const View& picks, const View& weight, const View& work) {
	KV_ASSERT(is_u32(picks) && is_f32(weight) && is_u32(work) && work.row_elements() == TOP_WORDS);
}

void check_candidates(const View& list, const View& block_max, const View& x, uint32_t k) {
	const uint32_t rows = x.shape[0], n = x.shape[1];
	KV_ASSERT(is_f32(x) && n > 0 && uint64_t(rows) * n == x.elements() && k > 0);
	KV_ASSERT(is_u32(list) && list.shape[0] == rows && list.row_elements() == KV_CANDIDATE_WORDS);
	KV_ASSERT(is_u32(block_max) && block_max.shape[0] == rows);
	KV_ASSERT(block_max.row_elements() == ceil_div(n, uint32_t(KV_LOGIT_BLOCK)));
}

void check_scatter(const View& words, const View& list) {
	KV_ASSERT(is_u32(words) && is_u32(list) && list.row_elements() == 2);
}

void check_part_share(const View& out, const View& parts, const View& work) {
	KV_ASSERT(is_f32(out) && is_f32(parts) && is_u32(work) && work.row_elements() == SHARE_WORDS);
	KV_ASSERT(out.shape[0] == work.shape[0] && out.row_elements() == parts.shape[1] && parts.shape[2] > 2);
}

void check_transfer(const View& dst, const View& src) {
	KV_ASSERT(dst.buf && src.buf && dst.type == src.type && dst.elements() == src.elements());
}

void check_channel_max(const View& out, const View& x) {
	KV_ASSERT(is_f32(out) && is_f32(x) && x.shape[3] == 1 && out.row_elements() == out.shape[1] &&
	          out.shape[1] == x.shape[2]);
	KV_ASSERT(out.shape[0] >= 1 && x.shape[1] % out.shape[0] == 0);
}

void check_kv_balance(const View& out, const View& q_max, const KvRows& k, uint32_t n) {
	KV_ASSERT(is_f16(k.k) && n <= k.k.shape[1] && is_balance(out, k.k.shape[0], k.k.shape[2]));
	KV_ASSERT(is_f32(q_max) && q_max.elements() == out.elements());
}

} // namespace kvrun
