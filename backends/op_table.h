// The operation table: every op of a device, its arguments, and what is said of its views. Everything that treats ops
// alike (shape checks, CheckedBackend, dumps, bytes of --ops, backends of tests) reads it and names no op.
//
// A new op is a struct here with
//   name()    in messages, dumps and times
//   text()    its shape, for messages
//   views()   f(row, view) for each view, in the order of dumps and comparisons; arguments that there are several of go
//             through f.items(); rows that depend on the device ask f.device()
// and, only where the rows do not say it:
//   check()   conditions on the arguments
//   bytes()   read and written, at least; else the sum over all views
//   written() the parts of Memory that it writes
// then its line in KV_EACH_OP and in OpCalls, and compute() in each backend.
//
// Shapes are (outermost, ..., innermost); T = rows (tokens) in this call. Activations are f32.
#pragma once
#include "backends/op_views.h"
#include "backends/ops.h"
#include "backends/tolerance.h"
#include "engine/core/round.h"
#include "shared/candidates.h"
#include <functional>
#include <utility>
#include <variant>
#include <vector>

namespace kvrun {

struct WrittenWords { // memory that an op writes, compared as slots by the rule "kv"
	const char* name;
	View view;         // u32
	uint32_t bits = 0; // of packed codes, which may be one off where a value lies between two; 0: pairs of f16
};
using WordReader = std::function<std::vector<uint32_t>(const View&)>; // what a u32 view holds

namespace op {

using enum DType;

struct Embed { // out (T, dim) f32 = table[tokens (T) u32]
	View out, table, tokens;

	const char* name() const { return "embed"; }
	std::string text() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.out.shape[0], dim = o.table.shape[1];
		f(output("out", F32, {T, dim}, "embed"), o.out);
		f(weight_input("table", o.table.shape[0], dim), o.table);
		f(input("tokens", U32, {T}), o.tokens);
	}
};

struct RmsNorm { // out (T, dim) = x / rms(x) * w (dim)
	View out, x, w;
	float eps;

	const char* name() const { return "rmsnorm"; }
	std::string text() const { return shape_text(x); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements();
		f(output("out", F32, {T, dim}, "rmsnorm"), o.out);
		f(input("x", F32, {T, dim}), o.x);
		f(input("w", F32, {dim}).uploaded(), o.w);
	}
};

// out (T, dim) = (x - mean) / sqrt(variance + eps) * w (dim) + b (dim), of each row; b may be empty
struct LayerNorm {
	View out, x, w, b;
	float eps;

	const char* name() const { return "layer_norm"; }
	std::string text() const { return shape_text(x); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements();
		f(output("out", F32, {T, dim}, "rmsnorm"), o.out);
		f(input("x", F32, {T, dim}), o.x);
		f(input("w", F32, {dim}).uploaded(), o.w);
		f(input("b", F32, {dim}).optional(), o.b);
	}
};

// v = scale * function(x) * y, then the cap; out = v or out + v. All of one shape, y may be empty; out may be x, y.
struct Activate {
	View out, x, y;
	Elementwise how;

	const char* name() const { return "activate"; }
	std::string text() const { return shape_text(x); }
	void check() const { KV_ASSERT(how.cap >= 0); }
	static void views(auto& o, auto& f) {
		const uint64_t n = o.x.elements();
		f(input("x", F32, {n}), o.x);
		f(input("y", F32, {n}).optional(), o.y);
		f(output("out", F32, {n}, "activate").added_to_if(o.how.add), o.out);
	}
};

// Projections of rows of n elements; `out` are the extents of their results but the last.
void projection_views(auto& projs, auto& f, uint64_t T, uint64_t n, Epilogue epilogue, bool decode) {
	const bool gated = epilogue == Epilogue::SwiGLU;
	bool first = true;
	for (auto& p : f.items(projs)) {
		const uint64_t d = p.w.shape[0];
		f(weight_input("w", d, n), p.w);
		f(input("bias", F32, {d}).optional(), p.bias);
		const ViewRow out = output("out", F32, {T, d}, matmul_tolerance(f.device(), p.w.type, gated, decode));
		f(out.added_to_if(epilogue == Epilogue::Add).only_if(first || !gated), p.out);
		first = false;
	}
}
std::string projection_text(const View& x, std::span<const Proj>);
void check_projections(std::span<const Proj>, const View& x, Epilogue);

// All projections read the same x (T, n). `decode`: rows of decode steps, else rows of a prompt. A row's result depends
// on which of the two it is and on nothing else: neither on T nor on the other rows.
struct Matmul {
	std::span<const Proj> projs;
	View x;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "matvec" : "matmul"; }
	std::string text() const { return projection_text(x, projs); }
	void check() const { check_projections(projs, x, epilogue); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.row_elements();
		f(input("x", F32, {T, n}), o.x);
		projection_views(o.projs, f, T, n, o.epilogue, o.decode);
	}
};

// Matmul of RmsNorm of x, for which `h` (T, n) is room: what it holds afterwards is not defined.
struct NormMatmul {
	std::span<const Proj> projs;
	View h, x, w;
	float eps;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "matvec" : "matmul"; }
	std::string text() const { return projection_text(x, projs); }
	void check() const { check_projections(projs, x, epilogue); }
	RmsNorm norm() const { return {h, x, w, eps}; } // the two ops that it stands for
	Matmul product() const { return {projs, h, epilogue, decode}; }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.row_elements();
		f(input("x", F32, {T, n}), o.x);
		f(input("norm", F32, {n}).uploaded(), o.w);
		f(scratch("h", F32, {T, n}), o.h);
		projection_views(o.projs, f, T, n, o.epilogue, o.decode);
	}
};

// ---- mixtures of experts: see RouteArgs for slots. At most KV_MOST_EXPERTS experts, KV_MOST_USED of them for a row.

// ids, weights (T, used) of logits (T, n_experts): the largest, of equal ones the first, in that order. Weights that
// are not finite come of logits that are not; ids are valid and different nevertheless.
struct Route {
	View ids, weights, logits;
	RouteArgs how;

	const char* name() const { return "route"; }
	std::string text() const;
	void check() const;
	// Logits choose the same experts everywhere. A bias is added to weights, whose last bits differ between devices and
	// may choose others: nothing is compared then.
	static void views(auto& o, auto& f) {
		const uint64_t T = o.logits.shape[0], n = o.logits.shape[1], used = o.ids.shape[1];
		const bool biased = bool(o.how.bias);
		f(output("ids", U32, {T, used}, "copy").words().adopted_if(biased), o.ids);
		f(output("weights", F32, {T, used}, "route").adopted_if(biased), o.weights);
		f(input("logits", F32, {T, n}), o.logits);
		f(input("bias", F32, {n}).optional().undumped(), o.how.bias);
	}
};

// tiles (expert_tiles(), KV_TILE_WORDS) u32: the slots of ids (T, used) by expert, see shaders/shared/experts.h.
struct SortSlots {
	View tiles, ids;
	uint32_t n_experts;

	const char* name() const { return "sort_slots"; }
	std::string text() const { return shape_text(ids); }
	void check() const { KV_ASSERT(ids.elements() >= 1 && n_experts >= 1 && n_experts <= KV_MOST_EXPERTS); }
	static void views(auto& o, auto& f) {
		const uint64_t slots = o.ids.elements();
		f(output("tiles", U32, {expert_tiles(uint32_t(slots), o.n_experts), KV_TILE_WORDS}, "copy").words(), o.tiles);
		f(input("ids", U32, {slots}), o.ids);
	}
};

// For each slot: out (T, used, d) = x . w^T + bias with w (n_experts * d, n) and bias (n_experts * d) f32, rows e * d
// .. e * d + d - 1 of expert e = ids[slot]. x (T, n), or (T * used, n): a row for each slot. Epilogues: None and the
// two of gates. decode: as Matmul has it; a slot's result depends on nothing else either.
struct ExpertMatmul {
	std::span<const Proj> projs;
	View x;
	ExpertRows rows;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "expert_matvec" : "expert_matmul"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.rows.ids.shape[0], used = o.rows.ids.shape[1], n = o.x.row_elements();
		const uint64_t tiles = expert_tiles(uint32_t(T * used), o.rows.n_experts);
		const bool gated = o.epilogue != Epilogue::None;
		f(input("x", F32, {o.x.shape[0], n}), o.x);
		f(input("ids", U32, {T, used}), o.rows.ids);
		f(input("tiles", U32, {tiles, KV_TILE_WORDS}).only_if(!o.decode).undumped(), o.rows.tiles);
		bool first = true;
		for (auto& p : f.items(o.projs)) {
			const uint64_t d = p.w.shape[0];
			f(weight_input("w", d, n), p.w);
			f(input("bias", F32, {d}).optional(), p.bias);
			const ViewRow out = output("out", F32, {T, used, d / o.rows.n_experts},
			                           matmul_tolerance(f.device(), p.w.type, gated, o.decode));
			f(out.only_if(first || !gated), p.out);
			first = false;
		}
	}
};

// x (T, dim) += sum over j of weights[t][j] * y[t][j]; y (T, used, dim), weights (T, used).
struct ExpertSum {
	View x, y, weights;

	const char* name() const { return "expert_sum"; }
	std::string text() const { return shape_text(y); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements(), used = o.weights.shape[1];
		f(inout("x", F32, {T, dim}, "expert_sum"), o.x);
		f(input("y", F32, {T, used, dim}), o.y);
		f(input("weights", F32, {T, used}), o.weights);
	}
};

// ---- keys and values on their way into the cache

// Views of rows of K and V outside of pages.
void row_views(auto& kv, auto& f) {
	const auto& k = kv.k;
	const ViewRow row = input("k", F16, {k.shape[0], k.shape[1], k.shape[2]}).undumped();
	f(row, kv.k);
	f(row, kv.v);
	f(memory("sinks", F32).optional(), kv.softmax.sinks);
}
// Views of places in pages for n rows.
void place_views(auto& place, auto& f, uint64_t n, uint64_t n_kv_heads) {
	f(memory("k"), place.k);
	f(memory("v"), place.v);
	f(input("at", U32, {n * n_kv_heads * 2}), place.at);
}

// Head norm (optional), rotation of q in place (T, n_heads, head_dim), of k (T, n_kv_heads, head_dim), then k and v to
// f16 at `dst`; k and v themselves are left as they are.
struct RopeStore {
	View q, k, v;
	RopeArgs rope;
	HeadNorm norm;
	KvDst dst;

	const char* name() const { return "rope_store"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	std::vector<WrittenWords> written(const WordReader&) const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_kv_heads = o.k.shape[1], D = o.q.shape[2];
		f(inout("q", F32, {T, o.q.shape[1], D}, "rope"), o.q);
		f(input("k", F32, {T, n_kv_heads, D}), o.k);
		f(input("v", F32, {T, n_kv_heads, D}), o.v);
		f(input("table", F32, {T * o.rope.rotary_dim}), o.rope.table);
		f(input("norm_q", F32, {D}).optional().undumped(), o.norm.q);
		f(input("norm_k", F32, {D}).optional().undumped(), o.norm.k);
		place_views(o.dst, f, T, n_kv_heads);
	}
};

struct KvStore { // rows [src.first, src.first + n) of src (as f16, unchanged) to `dst`, whose `at` has n rows
	KvRows src;
	uint32_t n;
	KvDst dst;

	const char* name() const { return "kv_store"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	std::vector<WrittenWords> written(const WordReader&) const;
	static void views(auto& o, auto& f) {
		place_views(o.dst, f, o.n, o.src.k.shape[0]);
		row_views(o.src, f);
	}
};

struct KvLoad { // rows [dst.first, dst.first + n) of dst = the f16 keys and values at `src`: the inverse of KvStore
	KvRows dst;
	uint32_t n;
	KvDst src;

	const char* name() const { return "kv_load"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const auto& k = o.dst.k;
		const Extents shape = {k.shape[0], k.shape[1], k.shape[2]};
		place_views(o.src, f, o.n, k.shape[0]);
		f(output("dst.k", F16, shape, "copy").slots(), o.dst.k);
		f(output("dst.v", F16, shape, "copy").slots(), o.dst.v);
	}
};

// ---- attention

// Views of what attention reads of pages; dumped: the lists are.
void read_views(auto& kv, auto& f, const View& q, bool dumped) {
	const auto list = [&](const ViewRow& row) { return dumped ? row : row.undumped(); };
	f(list(input("work", U32, {kAny, ATTEND_WORDS})), kv.work);
	f(list(words_input("tables")), kv.tables);
	f(list(input("row_parts", U32, {q.shape[0] * uint64_t(2)})), kv.row_parts);
	f(scratch("parts", F32, {kAny, q.shape[1] * (q.shape[2] + uint64_t(2))}), kv.parts);
	bool balanced = false;
	for (auto& g : f.items(kv.groups)) {
		f(memory("k_codes"), g.k_codes);
		f(memory("v_codes"), g.v_codes);
		f(memory("k_params").only_if(g.format.k.bits != 16), g.k_params);
		f(memory("v_params").only_if(g.format.v.bits != 16), g.v_params);
		f(memory("v_factors").only_if(g.format.v.prescale == Prescale::SqrtMax), g.v_factors);
		balanced |= g.format.k.prescale == Prescale::Balance;
	}
	f(memory("balance").only_if(balanced), kv.balance);
	f(input("sinks", F32, {q.shape[1]}).optional().undumped(), kv.softmax.sinks);
}
bool packed(const KvRead&); // whether some pages are

// out (T, n_heads, head_dim) = softmax(q . K^T / sqrt(head_dim)) . V over all live tokens of every tier. lse (T,
// n_heads) = log of the sum of exp(score) over the tokens a row sees, and the sink; empty if not wanted.
struct Attend {
	View out, lse, q;
	KvRead kv;

	const char* name() const { return "attend"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		const std::string_view rule = attend_tolerance(f.device(), /*prompt=*/false, packed(o.kv), "attend");
		f(output("out", F32, {o.q.elements()}, rule), o.out);
		f(output("lse", F32, {T * n_heads}, rule).slots().optional(), o.lse); // -inf for a row that sees nothing
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		read_views(o.kv, f, o.q, /*dumped=*/true);
	}
};

// The same for prompt rows over their own K and V, causal: row i sees tokens 0 .. own.first + i; and over older tokens
// if `older` is not null: then the last part of each row in older->row_parts has no work item and takes the state over
// the prompt's own tokens. Both have the same Softmax.
struct AttendPrompt {
	View out, lse, q;
	KvRows own;
	const KvRead* older;

	const char* name() const { return "attend_prompt"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		const bool reads_packed = o.older && packed(*o.older);
		const std::string_view rule = attend_tolerance(f.device(), /*prompt=*/true, reads_packed, "attend_prompt");
		f(output("out", F32, {o.q.elements()}, rule), o.out);
		f(output("lse", F32, {T * n_heads}, rule).optional(), o.lse);
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		row_views(o.own, f);
		for (auto& kv : f.items(o.older)) read_views(kv, f, o.q, /*dumped=*/false);
	}
};

// ---- packing

// Quantises tokens of `src` (src.first is not used) and packs them into pages, by the rules of engine/kv_host/quant.h.
// Parameters per channel: a work item is one whole page (slot 0, n = page) unless k_block.
struct KvPack {
	KvRows src;
	PackArgs args;

	const char* name() const { return "kv_pack"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	std::vector<WrittenWords> written(const WordReader&) const;
	static void views(auto& o, auto& f) {
		auto& a = o.args;
		f(words_input("sources"), a.sources);
		f(input("work", U32, {kAny, PACK_WORDS}), a.work);
		row_views(o.src, f);
		f(memory("k_codes").optional(), a.k_codes);
		f(memory("v_codes").optional(), a.v_codes);
		f(memory("k_params").only_if(a.format.k.bits > 0), a.k_params);
		f(memory("v_params").only_if(a.format.v.bits > 0), a.v_params);
		f(memory("v_factors").only_if(a.format.v.prescale == Prescale::SqrtMax), a.v_factors);
		f(memory("balance").only_if(a.format.k.prescale == Prescale::Balance), a.balance);
	}
};

// Parameters over all tokens of a work item: K's (scale, zero) per channel, V's channel factors sqrt(max|x|).
struct KvBlock {
	KvRows src;
	BlockArgs args;

	const char* name() const { return "kv_block"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	std::vector<WrittenWords> written(const WordReader&) const;
	static void views(auto& o, auto& f) {
		auto& a = o.args;
		f(words_input("sources"), a.sources);
		f(input("work", U32, {kAny, BLOCK_WORDS}), a.work);
		row_views(o.src, f);
		f(memory("words"), a.words);
		f(memory("balance").only_if(a.format.k.prescale == Prescale::Balance), a.balance);
	}
};

// ---- saliency: attention received, summed over the rows of q that `rows` (n) u32 lists in ascending order, averaged
// over the query heads of a kv head: score[h][t] += sum_r mean_heads exp(q . k_t / sqrt(head_dim) - lse[r][head]);
// without attention each row counts 1; times |k_t|, or over it and at least 1e-6, where the key's length counts.

// Prompt tokens, causal: row r sees tokens 0 .. kv.first + r. score (n_kv_heads, >= kv.first + T). Scores have kv's
// softcap.
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
		const std::string_view rule = attend_tolerance(f.device(), /*prompt=*/true, /*packed=*/false, "attend");
		f(inout("score", F32, {o.kv.k.shape[0], o.score.shape[1]}, rule).undumped(), o.score);
	}
};

struct ScoreSlots { // live tokens in f16 pages: every work item's pages against the rows it lists
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
		for (auto& g : f.items(a.groups)) f(memory("k_codes"), g.k_codes);
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

// MiKV eq. (2): out (n_kv_heads, head_dim) f16 = sqrt(q_max / max |k|), k over rows [0, n) of the prompt's keys; 1
// where that is 0.  max |k| is taken as at least 1e-12.
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

	const char* name() const { return "copy"; }
	std::string text() const { return shape_text(dst); }
	void check() const { KV_ASSERT(!is_quantised(src.type)); }
	static void views(auto& o, auto& f) {
		f(input("src", o.src.type, {o.src.elements()}), o.src);
		f(output("dst", o.src.type, {o.src.elements()}, o.src.type == F32 ? "copy" : ""), o.dst);
	}
};

// ---- fetching: what a row attends to, and masking

// Attention that live tokens of pages receive from one row per work item: weight[..] = mean over the query heads of a
// kv head of exp(q . k / sqrt(head_dim) - lse); -1 for slots without a live token.
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
		for (auto& g : f.items(a.groups)) {
			f(memory("k_codes"), g.k_codes);
			f(memory("k_params").only_if(g.k.bits != 16), g.k_params);
			reads_packed |= g.k.bits < 16;
			balanced |= g.k.prescale == Prescale::Balance;
		}
		f(memory("balance").only_if(balanced), a.balance);
		const std::string_view rule = attend_tolerance(f.device(), /*prompt=*/false, reads_packed, "attend");
		f(output("weight", F32, {kAny}, rule).slots(), a.weight);
	}
};

// For each work item the indices of its k largest weights that are not negative, ascending; ~0 behind them where there
// are fewer. Of equal ones the first. A difference in the last bits of two weights may exchange them, so picks are not
// compared: how the weights came about is.
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
// KV_LOGIT_BLOCK elements. list (T, KV_CANDIDATE_WORDS) u32: how many, then (index, bits) of each by index; or
// KV_CANDIDATES + 1, the rest undefined, if there are more than KV_CANDIDATES, fewer blocks than k, a NaN or +inf in
// the row, or if the k-th largest maximum is -inf. block_max (T, blocks) u32: room for the maxima. k >= 1. The list is
// not compared: logits that differ in their last bits may list others.
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

	const char* name() const { return "scatter"; }
	std::string text() const { return shape_text(list); }
	double bytes() const { return 2. * double(list.bytes()); }
	static void views(auto& o, auto& f) {
		f(input("list", U32, {kAny, 2}), o.list);
		f(memory("words"), o.words);
	}
};

// out (n, n_heads): the share of a row's softmax weights that its first parts hold. work (n, 4) u32, ShareWork.
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

// Every op, once.
// clang-format off
#define KV_EACH_OP(X) \
	X(Embed) \
	X(RmsNorm) \
	X(LayerNorm) \
	X(Activate) \
	X(Matmul) \
	X(NormMatmul) \
	X(Route) \
	X(SortSlots) \
	X(ExpertMatmul) \
	X(ExpertSum) \
	X(RopeStore) \
	X(KvStore) \
	X(KvLoad) \
	X(Attend) \
	X(AttendPrompt) \
	X(KvPack) \
	X(KvBlock) \
	X(ScorePrompt) \
	X(ScoreSlots) \
	X(ChannelMax) \
	X(KvBalance) \
	X(Copy) \
	X(Weigh) \
	X(TopK) \
	X(Candidates) \
	X(Scatter) \
	X(PartShare)
// clang-format on

template <class First, class... Ops> using Rest = std::variant<Ops...>; // without the one in front of the first comma
struct Nothing {};
#define KV_COMMA_OP(O) , O
using Any = Rest<Nothing KV_EACH_OP(KV_COMMA_OP)>;
#undef KV_COMMA_OP

} // namespace op

using Op = op::Any;

// A call for each op: enqueues it and returns.
class OpCalls {
 public:
	virtual void run(const Op&) = 0;

	void embed(View out, View table, View tokens) { run(op::Embed{out, table, tokens}); }
	void rmsnorm(View out, View x, View w, float eps) { run(op::RmsNorm{out, x, w, eps}); }
	void layer_norm(View out, View x, View w, View b, float eps) { run(op::LayerNorm{out, x, w, b, eps}); }
	void activate(View out, View x, View y, const Elementwise& how) { run(op::Activate{out, x, y, how}); }
	void matmul(std::span<const Proj> projs, View x, Epilogue epilogue, bool decode) {
		run(op::Matmul{projs, x, epilogue, decode});
	}
	void route(View ids, View weights, View logits, const RouteArgs& how) { run(op::Route{ids, weights, logits, how}); }
	void sort_slots(View tiles, View ids, uint32_t n_experts) { run(op::SortSlots{tiles, ids, n_experts}); }
	void expert_matmul(std::span<const Proj> projs, View x, const ExpertRows& rows, Epilogue epilogue, bool decode) {
		run(op::ExpertMatmul{projs, x, rows, epilogue, decode});
	}
	void expert_sum(View x, View y, View weights) { run(op::ExpertSum{x, y, weights}); }
	void rope_store(View q, View k, View v, const RopeArgs& rope, const HeadNorm& norm, const KvDst& dst) {
		run(op::RopeStore{q, k, v, rope, norm, dst});
	}
	void kv_store(const KvRows& src, uint32_t n, const KvDst& dst) { run(op::KvStore{src, n, dst}); }
	void kv_load(const KvRows& dst, uint32_t n, const KvDst& src) { run(op::KvLoad{dst, n, src}); }
	void attend(View out, View lse, View q, const KvRead& kv) { run(op::Attend{out, lse, q, kv}); }
	void attend_prompt(View out, View lse, View q, const KvRows& own, const KvRead* older) {
		run(op::AttendPrompt{out, lse, q, own, older});
	}
	void kv_pack(const KvRows& src, const PackArgs& args) { run(op::KvPack{src, args}); }
	void kv_block(const KvRows& src, const BlockArgs& args) { run(op::KvBlock{src, args}); }
	void score_prompt(View score, View q, View lse, View rows, const KvRows& kv, Saliency saliency) {
		run(op::ScorePrompt{score, q, lse, rows, kv, saliency});
	}
	void score_slots(View q, View lse, const ScoreArgs& args) { run(op::ScoreSlots{q, lse, args}); }
	void channel_max(View out, View x) { run(op::ChannelMax{out, x}); }
	void kv_balance(View out, View q_max, const KvRows& k, uint32_t n) { run(op::KvBalance{out, q_max, k, n}); }
	void copy(View dst, View src) { run(op::Copy{dst, src}); }
	void weigh(View q, View lse, const WeighArgs& args) { run(op::Weigh{q, lse, args}); }
	void top_k(View picks, View weight, View work) { run(op::TopK{picks, weight, work}); }
	void candidates(View list, View block_max, View x, uint32_t k) { run(op::Candidates{list, block_max, x, k}); }
	void scatter(View words, View list) { run(op::Scatter{words, list}); }
	void part_share(View out, View parts, View work) { run(op::PartShare{out, parts, work}); }

 protected:
	~OpCalls() = default;
};

} // namespace kvrun
