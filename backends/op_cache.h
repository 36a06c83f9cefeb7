// Rows of the operation table: storing keys and values in the cache, attention to them, packing.
#pragma once
#include "backends/op_views.h"
#include "backends/ops.h"
#include "backends/tolerance.h"
#include <functional>
#include <vector>

namespace kvrun {

struct WrittenWords { // memory that an op writes, compared as slots
	const char* name;
	View view;         // u32, or f32
	uint32_t bits = 0; // packed codes, which may differ by one where a value lies between two; 0: f32, or pairs of f16
	std::string_view rule = "kv"; // of tolerance()
};
using WordReader = std::function<std::vector<uint32_t>(const View&)>; // what a u32 view holds

namespace op {

using enum DType;

// ---- keys and values on their way into the cache

// Views of rows of K and V outside of pages.
void row_views(auto& kv, auto& f) {
	const auto& k = kv.k;
	f(input("k", F16, {k.shape[0], k.shape[1], k.shape[2]}).undumped(), kv.k);
	f(input("v", F16, {k.shape[0], k.shape[1], kv.v.shape[2]}).undumped(), kv.v);
	f(memory("sinks", F32).optional(), kv.softmax.sinks);
}
ViewRow seen_row(auto& kv, uint64_t T) {
	return input("seen", U32, {T * kv.seen_sets(uint32_t(T)), kv.seen.shape[1]}).optional();
}
// Views of places in pages, for n rows that are stored there or read from there.
void place_views(auto& place, auto& f, uint64_t n, uint64_t n_kv_heads, bool stores) {
	f(memory("k").stores(stores), place.k);
	f(memory("v").stores(stores), place.v);
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
		f(input("k", F32, {T, n_kv_heads, o.rope.of_values ? o.k.shape[2] : D}), o.k);
		f(input("v", F32, {T, n_kv_heads, D}), o.v);
		f(input("table", F32, {T * o.rope.rotary_dim}), o.rope.table);
		f(input("norm_q", F32, {D}).optional().undumped(), o.norm.q);
		f(input("norm_k", F32, {D}).optional().undumped(), o.norm.k);
		place_views(o.dst, f, T, n_kv_heads, /*stores=*/true);
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
		place_views(o.dst, f, o.n, o.src.k.shape[0], /*stores=*/true);
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
		place_views(o.src, f, o.n, k.shape[0], /*stores=*/false);
		f(output("dst.k", F16, {k.shape[0], k.shape[1], k.shape[2]}, "copy").slots(), o.dst.k);
		f(output("dst.v", F16, {k.shape[0], k.shape[1], o.dst.v.shape[2]}, "copy").slots(), o.dst.v);
	}
};

// out = for each of n tokens and each head of out: the channels of a, then those of b, then zeros, as far as out has
// channels. Of b, which may be empty, one head may serve all. Widths are even.
struct JoinHeads {
	HeadRows out, a, b;
	uint32_t n;

	const char* name() const { return "join_heads"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const auto type = [](const HeadRows& x) { return x.halves() ? F16 : F32; };
		const View &out = o.out.v, &a = o.a.v, &b = o.b.v;
		f(output("out", type(o.out), {out.shape[0], out.shape[1], out.shape[2]}, o.out.halves() ? "kv" : "copy")
		      .slots(),
		  o.out.v);
		f(input("a", type(o.a), {a.shape[0], a.shape[1], a.shape[2]}), o.a.v);
		f(input("b", type(o.b), {b.shape[0], b.shape[1], b.shape[2]}).optional(), o.b.v);
	}
};

// ---- attention

ViewRow q_rope_row(auto& softmax, uint64_t T, uint64_t n_heads) {
	return input("q_rope", F32, {T, n_heads, softmax.q_rope.shape[2]}).optional();
}
void page_views(auto& g, auto& f) { // of an AttendGroup
	f(memory("k_codes"), g.k_codes);
	f(memory("v_codes"), g.v_codes);
	f(memory("k_params").only_if(g.format.k.bits != 16), g.k_params);
	f(memory("v_params").only_if(g.format.v.bits != 16), g.v_params);
	f(memory("v_factors").only_if(g.format.v.prescale == Prescale::SqrtMax), g.v_factors);
}
// Views that attention reads of pages; dumped: whether the lists are dumped.
void read_views(auto& kv, auto& f, const View& q, bool dumped) {
	const auto list = [&](const ViewRow& row) { return dumped ? row : row.undumped(); };
	f(list(input("work", U32, {kAny, ATTEND_WORDS})), kv.work);
	f(list(words_input("tables")), kv.tables);
	f(list(input("row_parts", U32, {q.shape[0] * uint64_t(2)})), kv.row_parts);
	f(scratch("parts", F32, {kAny, q.shape[1] * (q.shape[2] + uint64_t(2))}), kv.parts);
	bool balanced = false;
	for (auto& g : f.items(kv.groups)) {
		page_views(g, f);
		balanced |= g.format.k.prescale == Prescale::Balance;
	}
	f(memory("balance").only_if(balanced), kv.balance);
	f(input("sinks", F32, {q.shape[1]}).optional().undumped(), kv.softmax.sinks);
}
bool packed(const KvRead&); // whether some pages are packed

// out (T, n_heads, head_dim) = softmax(q . K^T / sqrt(head_dim)) . V over all live tokens of every tier. lse (T,
// n_heads) = log of the sum of exp(score) over the tokens that a row sees, and the sink; empty if not needed.
struct Attend {
	View out, lse, q;
	KvRead kv;

	const char* name() const { return "attend"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		const std::string_view rule =
		    attend_tolerance(f.device(), /*prompt=*/false, packed(o.kv), "attend", bool(o.kv.softmax.q_rope));
		f(output("out", F32, {o.q.elements()}, rule).widened_by(o.q), o.out);
		const ViewRow lse = output("lse", F32, {T * n_heads}, rule); // -inf for a row that sees nothing
		f(lse.widened_by(o.q).slots().optional(), o.lse);
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(q_rope_row(o.kv.softmax, T, n_heads), o.kv.softmax.q_rope);
		read_views(o.kv, f, o.q, /*dumped=*/true);
	}
};

// The same for prompt rows over their own K and V, causal: row i sees tokens 0 .. own.first + i, or those of them in
// own.seen. If `older` is not null, also over older tokens: then the last part of each row in older->row_parts has no
// work item, and holds the state over the prompt's own tokens. Both have the same Softmax.
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
		const std::string_view rule =
		    attend_tolerance(f.device(), /*prompt=*/true, reads_packed, "attend_prompt", bool(o.own.softmax.q_rope));
		f(output("out", F32, {o.q.elements()}, rule).widened_by(o.q), o.out);
		const ViewRow lse = output("lse", F32, {T * n_heads}, rule); // with own.seen, a row may see nothing
		f(lse.widened_by(o.q).slots(bool(o.own.seen)).optional(), o.lse);
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(q_rope_row(o.own.softmax, T, n_heads), o.own.softmax.q_rope);
		row_views(o.own, f);
		f(seen_row(o.own, T), o.own.seen);
		f(input("slopes", F32, {n_heads}).optional(), o.own.slopes);
		for (auto& kv : f.items(o.older)) {
			read_views(kv, f, o.q, /*dumped=*/false);
			f(q_rope_row(kv.softmax, T, n_heads).undumped(), kv.softmax.q_rope); // the same rows
		}
	}
};

// Rows of dst = latents and rotated keys of the live tokens of pages of any format; rotated latents are turned back.
// The first live token of a work item becomes row dst.first + AttendWork::row, its others follow in the order of pages
// and slots. The part, live_stride, factors and balance of an item are not used. Other rows keep what they hold.
struct UnpackLatents {
	KvRows dst; // one kv head, (1, capacity, channels)
	std::span<const AttendGroup> groups;
	View work, tables; // as in KvRead

	const char* name() const { return "unpack_latents"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const auto& k = o.dst.k;
		f(input("work", U32, {kAny, ATTEND_WORDS}), o.work);
		f(words_input("tables"), o.tables);
		for (auto& g : f.items(o.groups)) page_views(g, f);
		f(output("dst.k", F16, {k.shape[0], k.shape[1], k.shape[2]}, "kv").slots(), o.dst.k);
		f(output("dst.v", F16, {k.shape[0], k.shape[1], o.dst.v.shape[2]}, "kv").slots(), o.dst.v);
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
		f(memory("k_codes").optional().stores(), a.k_codes);
		f(memory("v_codes").optional().stores(), a.v_codes);
		f(memory("k_params").only_if(a.format.k.bits > 0).stores(), a.k_params);
		f(memory("v_params").only_if(a.format.v.bits > 0).stores(), a.v_params);
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
		f(memory("words").stores(), a.words);
		f(memory("balance").only_if(a.format.k.prescale == Prescale::Balance), a.balance);
	}
};

} // namespace op
} // namespace kvrun
