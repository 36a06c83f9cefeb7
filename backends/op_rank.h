// Rows of the operation table: saliency, fetching, and the largest logits.
#pragma once
#include "backends/op_cache.h"
#include "engine/core/round.h"
#include "shared/candidates.h"

namespace kvrun {

namespace op {

using enum DType;

// ---- saliency: attention received, summed over the rows of q that `rows` (n) u32 lists in ascending order, averaged
// over the query heads of a kv head: score[h][t] += sum_r mean_heads exp(q . k_t / sqrt(head_dim) - lse[r][head]).
// With latent attention (Softmax::q_rope) a score has q_rope . v_t as well, and keys have no length.
// Without attention each row counts 1. If the key's length counts, times |k_t|, or divided by max(|k_t|, 1e-6).

// Prompt tokens, causal: row r sees tokens 0 .. kv.first + r, or those of them in KvRows::seen. score (n_kv_heads, >=
// kv.first + T). Scores have kv's softcap.
struct ScorePrompt {
	View score, q, lse, rows;
	KvRows kv;
	Saliency saliency;

	const char* name() const { return "score_prompt"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(words_input("rows"), o.rows);
		f(input("lse", F32, {T * n_heads}), o.lse);
		row_views(o.kv, f);
		f(seen_row(o.kv, T), o.kv.seen);
		f(q_rope_row(o.kv.softmax, T, n_heads), o.kv.softmax.q_rope);
		const std::string_view rule = attend_tolerance(f.device(), /*prompt=*/true, /*packed=*/false, "attend");
		f(inout("score", F32, {o.kv.k.shape[0], o.score.shape[1]}, rule).undumped(), o.score);
	}
};

struct ScoreSlots { // live tokens in f16 pages: a work item's pages against the rows that it lists
	View q, lse;
	ScoreArgs args;

	const char* name() const { return "score_slots"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		auto& a = o.args;
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(words_input("rows"), a.rows);
		f(input("lse", F32, {T * n_heads}), o.lse);
		f(input("work", U32, {kAny, SCORE_WORDS}).undumped(), a.work);
		f(words_input("tables").undumped(), a.tables);
		f(q_rope_row(a, T, n_heads), a.q_rope);
		for (auto& g : f.items(a.groups)) {
			f(memory("k_codes"), g.k_codes);
			f(memory("v_codes").optional(), g.v_codes);
		}
		f(inout("score", F32, {kAny}, "attend").undumped(), a.score);
	}
};

struct ChannelMax { // out (n_kv_heads, head_dim) = max(out, |x|) over x (T, n_heads, head_dim), heads of a kv head
	View out, x;

	const char* name() const { return "channel_max"; }
	std::string text() const { return shape_text(x); }
	void check() const { KV_ASSERT(out.shape[0] >= 1 && x.shape[1] % out.shape[0] == 0); }
	static void views(auto& o, auto& f) {
		f(input("x", F32, {o.x.shape[0], o.x.shape[1], o.x.shape[2]}), o.x);
		f(inout("out", F32, {o.out.shape[0], o.x.shape[2]}, "copy").undumped(), o.out);
	}
};

// MiKV eq. (2): out (n_kv_heads, head_dim) f16 = sqrt(q_max / max |k|), k over rows [0, n) of the prompt's keys; or 1
// if that is 0. max |k| is at least 1e-12.
struct KvBalance {
	View out, q_max;
	KvRows k;
	uint32_t n;

	const char* name() const { return "kv_balance"; }
	std::string text() const;
	void check() const { KV_ASSERT(n <= k.k.shape[1]); }
	double bytes() const { return 2. * n * k.k.shape[0] * k.k.shape[2]; }
	static void views(auto& o, auto& f) {
		const auto& k = o.k.k;
		const uint64_t channels = k.shape[0] * uint64_t(k.shape[2]);
		f(input("q_max", F32, {channels}), o.q_max);
		f(input("k", F16, {k.shape[0], k.shape[1], k.shape[2]}).undumped(), o.k.k);
		f(memory("v", F16).optional(), o.k.v);
		f(output("out", F16, {channels}, "kv"), o.out);
	}
};

struct Copy { // same bytes, same type
	View dst, src;
	static constexpr bool moves_bytes = true;

	const char* name() const { return "copy"; }
	std::string text() const { return shape_text(dst); }
	void check() const { KV_ASSERT(!is_quantised(src.type)); }
	static void views(auto& o, auto& f) {
		f(input("src", o.src.type, {o.src.elements()}), o.src);
		f(output("dst", o.src.type, {o.src.elements()}, o.src.type == F32 ? "copy" : ""), o.dst);
	}
};

// ---- fetching: what a row attends to, and masking

// Attention that live tokens of pages receive from one row per work item: weight = mean over the query heads of a kv
// head of exp(q . k / sqrt(head_dim) - lse); -1 for slots without a live token. With latent attention a score has
// q_rope . v as well.
struct Weigh {
	View q, lse;
	WeighArgs args;

	const char* name() const { return "weigh"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		auto& a = o.args;
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		bool reads_packed = false, balanced = false;
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(input("work", U32, {kAny, WEIGH_WORDS}), a.work);
		f(input("lse", F32, {T * n_heads}), o.lse);
		f(words_input("tables").undumped(), a.tables);
		f(q_rope_row(a, T, n_heads), a.q_rope);
		for (auto& g : f.items(a.groups)) {
			f(memory("k_codes"), g.k_codes);
			f(memory("k_params").only_if(g.k.bits != 16), g.k_params);
			f(memory("v_codes").only_if(bool(a.q_rope)), g.v_codes);
			f(memory("v_params").only_if(bool(a.q_rope) && g.v.bits != 16), g.v_params);
			reads_packed |= g.k.bits < 16;
			balanced |= g.k.prescale == Prescale::Balance;
		}
		f(memory("balance").only_if(balanced), a.balance);
		const std::string_view rule =
		    attend_tolerance(f.device(), /*prompt=*/false, reads_packed, "attend", bool(a.q_rope));
		f(output("weight", F32, {kAny}, rule).slots(), a.weight);
	}
};

// For each work item the indices of its k largest non-negative weights, ascending, then ~0 if there are fewer. Among
// equal ones the first are taken. A difference in the last bits of two weights may exchange them, so picks are not
// compared; the weights are.
struct TopK {
	View picks, weight, work;

	const char* name() const { return "top_k"; }
	std::string text() const { return shape_text(work); }
	static void views(auto& o, auto& f) {
		f(input("weight", F32, {kAny}), o.weight);
		f(input("work", U32, {kAny, TOP_WORDS}), o.work);
		f(output("picks", U32, {kAny}, ""), o.picks);
	}
};

// The largest elements of each row of x (T, n): those not below the k-th largest of the maxima of blocks of
// KV_LOGIT_BLOCK elements. list (T, KV_CANDIDATE_WORDS) u32: their number, then (index, bits) of each by index. The
// number is KV_CANDIDATES + 1, and the rest undefined, if there are more than KV_CANDIDATES, if there are fewer than k
// blocks, if the row has a NaN or +inf, or if the k-th largest maximum is -inf. block_max (T, blocks) u32: scratch for
// the maxima. k >= 1. The list is not compared: logits that differ in their last bits may give another list.
struct Candidates {
	View list, block_max, x;
	uint32_t k;

	const char* name() const { return "candidates"; }
	std::string text() const;
	void check() const { KV_ASSERT(k > 0 && x.shape[1] > 0); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.shape[1];
		f(input("x", F32, {T, n}), o.x);
		f(scratch("block_max", U32, {T, ceil_div(n, KV_LOGIT_BLOCK)}), o.block_max);
		f(output("list", U32, {T, KV_CANDIDATE_WORDS}, ""), o.list);
	}
};

struct Scatter { // words[list[i][0]] = list[i][1]; list (n, 2) u32, every word at most once
	View words, list;
	static constexpr bool moves_bytes = true;

	const char* name() const { return "scatter"; }
	std::string text() const { return shape_text(list); }
	double bytes() const { return 2. * double(list.bytes()); }
	static void views(auto& o, auto& f) {
		f(input("list", U32, {kAny, 2}), o.list);
		f(memory("words").stores(), o.words);
	}
};

// out (n, n_heads): the share of a row's softmax weights in its first parts. work (n, 4) u32, ShareWork.
struct PartShare {
	View out, parts, work;

	const char* name() const { return "part_share"; }
	std::string text() const { return shape_text(out); }
	void check() const { KV_ASSERT(parts.shape[2] > 2); }
	double bytes() const { return 8. * parts.shape[0] * parts.shape[1]; }
	static void views(auto& o, auto& f) {
		const uint64_t n = o.work.shape[0], n_heads = o.parts.shape[1];
		f(input("work", U32, {n, SHARE_WORDS}), o.work);
		f(input("parts", F32, {kAny, n_heads, o.parts.shape[2]}).undumped(), o.parts);
		f(output("out", F32, {n, n_heads}, "attend"), o.out);
	}
};

} // namespace op
} // namespace kvrun
