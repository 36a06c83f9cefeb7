// CheckedBackend: the ops, each on both backends.
#include "backends/checked_backend.h"
#include "backends/shapes.h"
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace kvrun {

// The caller's views as one of the two backends knows them. Weights have a place of their own in the reference.
struct CheckedBackend::Map {
	const CheckedBackend& checked;
	bool to_reference;

	View operator()(const View& v) const {
		if (!v) return {};
		return to_reference ? checked.reference(v) : checked.inner(v);
	}
	View weight(const View& v) const { return to_reference ? checked.reference_weight(v) : checked.inner(v); }
	Proj operator()(const Proj& p) const { return {(*this)(p.out), weight(p.w), (*this)(p.bias)}; }
	template <class A>
	requires(!std::is_same_v<A, View> && !std::is_same_v<A, Proj>) A operator()(A args) const {
		each_view(args, [&](const char*, View& v) { v = (*this)(v); });
		return args;
	}
	template <class G> std::vector<G> groups(std::span<const G> from) const {
		std::vector<G> r;
		for (const G& g : from) r.push_back((*this)(g));
		return r;
	}
};

template <class F>
void CheckedBackend::run(const char* op, std::string shape, std::vector<Named> in, std::vector<Output> out, F f) {
	const bool dumped = dumps(op);
	if (dumped)
		for (const Named& n : in) dump(op, n.name, n.view);
	f(*inner_, Map{*this, false});
	if (reference_) f(*reference_, Map{*this, true});
	if (dumped)
		for (const Output& o : out) dump(op, o.name, o.view);
	for (const Output& o : out) compare_output(op, shape, o);
	++n_ops_;
}

void CheckedBackend::embed(View out, View table, View tokens) {
	check_embed(out, table, tokens);
	run("embed", fmt::format("{} of {} {}", shape_text(out), dtype_info(table.type).name, shape_text(table)),
	    {{"tokens", tokens}}, {{"out", out, tolerance("embed")}},
	    [&](Backend& b, const Map& map) { b.embed(map(out), map.weight(table), map(tokens)); });
}

void CheckedBackend::rmsnorm(View out, View x, View w, float eps) {
	check_rmsnorm(out, x, w);
	run("rmsnorm", shape_text(x), {{"x", x}, {"w", w}}, {{"out", out, tolerance("rmsnorm")}},
	    [&](Backend& b, const Map& map) { b.rmsnorm(map(out), map(x), map.weight(w), eps); });
}

void CheckedBackend::layer_norm(View out, View x, View w, View b, float eps) {
	check_layer_norm(out, x, w, b);
	std::vector<Named> in = {{"x", x}, {"w", w}};
	if (b) in.push_back({"b", b});
	run("layer_norm", shape_text(x), std::move(in), {{"out", out, tolerance("rmsnorm")}},
	    [&](Backend& be, const Map& map) { be.layer_norm(map(out), map(x), map.weight(w), map(b), eps); });
}

void CheckedBackend::activate(View out, View x, View y, const Elementwise& e) {
	check_activate(out, x, y, e);
	std::vector<Named> in = {{"x", x}};
	if (y) in.push_back({"y", y});
	if (e.add) in.push_back({"out_before", out});
	run("activate", shape_text(x), std::move(in), {{"out", out, tolerance("activate")}},
	    [&](Backend& b, const Map& map) { b.activate(map(out), map(x), map(y), e); });
}

// norm: of x; empty: none.
template <class F>
void CheckedBackend::multiply(std::span<const Proj> projs, View x, View norm, Epilogue epilogue, bool decode, F f) {
	const char* op = decode ? "matvec" : "matmul";
	std::vector<Named> in = {{"x", x}};
	if (norm) in.push_back({"norm", norm});
	std::vector<Output> out;
	std::string shape = fmt::format("x {}", shape_text(x));
	for (const Proj& p : projs) {
		shape += fmt::format(" w {} {}", dtype_info(p.w.type).name, shape_text(p.w));
		if (p.bias) in.push_back({"bias", p.bias});
		if (epilogue == Epilogue::Add) in.push_back({"out_before", p.out});
		if (epilogue == Epilogue::SwiGLU && &p != &projs[0]) continue;
		out.push_back(
		    {"out", p.out, tolerance(matmul_tolerance(info(), p.w.type, epilogue == Epilogue::SwiGLU, decode))});
	}
	run(op, shape, std::move(in), std::move(out), f);
}

void CheckedBackend::matmul(std::span<const Proj> projs, View x, Epilogue epilogue, bool decode) {
	check_matmul(projs, x, epilogue);
	multiply(projs, x, {}, epilogue, decode,
	         [&](Backend& b, const Map& map) { b.matmul(map.groups(projs), map(x), epilogue, decode); });
}

void CheckedBackend::norm_matmul(std::span<const Proj> projs, View h, View x, View w, float eps, Epilogue epilogue,
                                 bool decode) {
	if (!inner_->norms_in_matmul(projs, inner(x), inner(w), decode))
		return Backend::norm_matmul(projs, h, x, w, eps, epilogue, decode);
	check_rmsnorm(h, x, w);
	check_matmul(projs, x, epilogue);
	multiply(projs, x, w, epilogue, decode, [&](Backend& b, const Map& map) {
		b.norm_matmul(map.groups(projs), map(h), map(x), map.weight(w), eps, epilogue, decode);
	});
}

// Logits choose the same experts everywhere. A bias is added to weights, whose last bits differ between devices and may
// choose others: nothing is compared then, and both go on with the inner one's choice.
void CheckedBackend::route(View ids, View weights, View logits, const RouteArgs& a) {
	check_route(ids, weights, logits, a);
	const std::vector<Output> all = {{"ids", ids, tolerance("copy"), false, 32},
	                                 {"weights", weights, tolerance("route")}};
	run("route", fmt::format("{} of {}", ids.shape[1], shape_text(logits)), {{"logits", logits}},
	    a.bias ? std::vector<Output>() : all,
	    [&](Backend& b, const Map& map) { b.route(map(ids), map(weights), map(logits), map(a)); });
	for (const Output& o : all)
		if (a.bias) carry_on(o, fetch(*inner_, inner(o.view)), /*wrong=*/false);
}

void CheckedBackend::sort_slots(View tiles, View ids, uint32_t n_experts) {
	check_sort_slots(tiles, ids, n_experts);
	run("sort_slots", shape_text(ids), {{"ids", ids}}, {{"tiles", tiles, tolerance("copy"), false, 32}},
	    [&](Backend& b, const Map& map) { b.sort_slots(map(tiles), map(ids), n_experts); });
}

void CheckedBackend::expert_matmul(std::span<const Proj> projs, View x, const ExpertRows& e, Epilogue epilogue,
                                   bool decode) {
	check_expert_matmul(projs, x, e, epilogue, decode);
	const bool gated = epilogue != Epilogue::None;
	std::vector<Named> in = {{"x", x}, {"ids", e.ids}};
	std::vector<Output> out;
	std::string shape = fmt::format("x {} ids {} of {}", shape_text(x), shape_text(e.ids), e.n_experts);
	for (const Proj& p : projs) {
		shape += fmt::format(" w {} {}", dtype_info(p.w.type).name, shape_text(p.w));
		if (p.bias) in.push_back({"bias", p.bias});
		if (!gated || &p == &projs[0])
			out.push_back({"out", p.out, tolerance(matmul_tolerance(info(), p.w.type, gated, decode))});
	}
	run(decode ? "expert_matvec" : "expert_matmul", shape, std::move(in), std::move(out),
	    [&](Backend& b, const Map& map) { b.expert_matmul(map.groups(projs), map(x), map(e), epilogue, decode); });
}

void CheckedBackend::expert_sum(View x, View y, View weights) {
	check_expert_sum(x, y, weights);
	run("expert_sum", shape_text(y), {{"x_before", x}, {"y", y}, {"weights", weights}},
	    {{"x", x, tolerance("expert_sum")}},
	    [&](Backend& b, const Map& map) { b.expert_sum(map(x), map(y), map(weights)); });
}

void CheckedBackend::rope_store(View q, View k, View v, const RopeArgs& rope, const HeadNorm& norm, const KvDst& dst) {
	check_rope_store(q, k, v, rope, norm, dst);
	std::vector<Output> out = cache_outputs(dst, k.shape[1], k.shape[2]);
	out.insert(out.begin(), {"q", q, tolerance("rope")});
	const std::string shape =
	    fmt::format("q {} k {} rotary {}{}", shape_text(q), shape_text(k), rope.rotary_dim, rope.neox ? " neox" : "");
	run("rope_store", shape, {{"q_before", q}, {"k", k}, {"v", v}, {"table", rope.table}, {"at", dst.at}},
	    std::move(out),
	    [&](Backend& b, const Map& map) { b.rope_store(map(q), map(k), map(v), map(rope), map(norm), map(dst)); });
}

void CheckedBackend::kv_store(const KvRows& src, uint32_t n, const KvDst& dst) {
	check_kv_store(src, n, dst);
	run("kv_store", fmt::format("{} of {}", n, shape_text(src.k)), {{"at", dst.at}},
	    cache_outputs(dst, src.k.shape[0], src.k.shape[2]),
	    [&](Backend& b, const Map& map) { b.kv_store(map(src), n, map(dst)); });
}

void CheckedBackend::kv_load(const KvRows& dst, uint32_t n, const KvDst& src) {
	check_kv_store(dst, n, src);
	std::vector<Output> out = {{"dst.k", dst.k, tolerance("copy"), true}, {"dst.v", dst.v, tolerance("copy"), true}};
	run("kv_load", fmt::format("{} of {}", n, shape_text(dst.k)), {{"at", src.at}}, std::move(out),
	    [&](Backend& b, const Map& map) { b.kv_load(map(dst), n, map(src)); });
}

namespace {
bool packed(const KvRead& kv) {
	return std::ranges::any_of(kv.groups,
	                           [](const AttendGroup& g) { return g.format.k.bits < 16 || g.format.v.bits < 16; });
}
} // namespace

void CheckedBackend::attend(View out, View lse, View q, const KvRead& kv) {
	check_attend(out, lse, q, kv);
	const Tolerance t = tolerance(attend_tolerance(info(), /*prompt=*/false, packed(kv), "attend"));
	std::vector<Output> outs = {{"out", out, t}};
	if (lse) outs.push_back({"lse", lse, t, true}); // -inf for a row that sees nothing
	run("attend", fmt::format("q {} kv heads {} work {}", shape_text(q), kv.n_kv_heads, kv.work.shape[0]),
	    {{"q", q}, {"work", kv.work}, {"tables", kv.tables}, {"row_parts", kv.row_parts}}, std::move(outs),
	    [&](Backend& b, const Map& map) {
		    KvRead read = map(kv);
		    const std::vector<AttendGroup> groups = map.groups(kv.groups);
		    read.groups = groups;
		    b.attend(map(out), map(lse), map(q), read);
	    });
}

void CheckedBackend::attend_prompt(View out, View lse, View q, const KvRows& own, const KvRead* older) {
	check_attend_prompt(out, lse, q, own, older);
	const std::string shape = fmt::format("q {} after {} of {}{}", shape_text(q), own.first, shape_text(own.k),
	                                      older ? fmt::format(" and {} pieces", older->work.shape[0]) : "");
	const Tolerance t = tolerance(attend_tolerance(info(), /*prompt=*/true, older && packed(*older), "attend_prompt"));
	std::vector<Output> outs = {{"out", out, t}};
	if (lse) outs.push_back({"lse", lse, t});
	run("attend_prompt", shape, {{"q", q}}, std::move(outs), [&](Backend& b, const Map& map) {
		if (!older) return b.attend_prompt(map(out), map(lse), map(q), map(own), nullptr);
		KvRead read = map(*older);
		const std::vector<AttendGroup> groups = map.groups(older->groups);
		read.groups = groups;
		b.attend_prompt(map(out), map(lse), map(q), map(own), &read);
	});
}

void CheckedBackend::copy(View dst, View src) {
	check_copy(dst, src);
	std::vector<Output> out;
	if (dst.type == DType::F32) out.push_back({"dst", dst, tolerance("copy")});
	run("copy", shape_text(dst), {{"src", src}}, std::move(out),
	    [&](Backend& b, const Map& map) { b.copy(map(dst), map(src)); });
}

#define WORD(Work, field) (offsetof(Work, field) / sizeof(uint32_t))

void CheckedBackend::kv_pack(const KvRows& src, const PackArgs& a) {
	check_kv_pack(src, a);
	const std::vector<uint32_t> work = fetch_words(a.work);
	const uint32_t n_kv = src.k.shape[0], D = src.k.shape[2];
	const Quant &k = a.format.k, &v = a.format.v;
	std::vector<Output> out; // parameters first: codes follow from them
	const auto add = [&](const char* name, const View& pool, size_t field, uint32_t n, uint32_t bits) {
		add_span(out, name, pool, work, PACK_WORDS, field, n, bits);
	};
	const auto add_params = [&](const char* name, const View& pool, size_t field, const Quant& q) {
		const uint32_t words = page_param_words(q, n_kv, D, a.page);
		if (q.param_bits == 16) return add(name, pool, field, words, 0);
		const uint32_t bytes = q.scale == Scale::Codebook // words of them; halves follow
		                           ? kv_norm_scale_word(n_kv, 0, a.page)
		                           : kv_byte_largest_word(ParamPage{q, nullptr, n_kv, D, a.page}.n_params(), 0);
		for (size_t i = 0; i < work.size(); i += PACK_WORDS) {
			const uint32_t at[2] = {work[i + field], work[i + field] + bytes};
			add_span(out, name, pool, std::span(at, 1), 1, 0, bytes, 8);
			add_span(out, name, pool, std::span(at + 1, 1), 1, 0, words - bytes, 0);
		}
	};
	const auto plane_bits = [](const Quant& q) { return q.bits == 3 ? 1u : uint32_t(q.bits); };
	if (k.bits && !a.k_block) add_params("k_params", a.k_params, WORD(PackWork, k_params), k);
	if (v.bits) add_params("v_params", a.v_params, WORD(PackWork, v_params), v);
	if (k.bits)
		add("k_codes", a.k_codes, WORD(PackWork, k_codes), kv_code_words(n_kv, D, k.bits, a.page), plane_bits(k));
	if (v.bits)
		add("v_codes", a.v_codes, WORD(PackWork, v_codes), kv_code_words(n_kv, D, v.bits, a.page), plane_bits(v));
	const std::string shape =
	    fmt::format("{} items of {} K {} bits V {} bits", a.work.shape[0], shape_text(src.k), k.bits, v.bits);
	run("kv_pack", shape, {{"sources", a.sources}, {"work", a.work}}, std::move(out),
	    [&](Backend& b, const Map& map) { b.kv_pack(map(src), map(a)); });
}

void CheckedBackend::kv_block(const KvRows& src, const BlockArgs& a) {
	check_kv_block(src, a);
	const std::vector<uint32_t> work = fetch_words(a.work);
	const uint32_t n_kv = src.k.shape[0], D = src.k.shape[2];
	std::vector<Output> out;
	add_span(out, "k_params", a.words, work, BLOCK_WORDS, WORD(BlockWork, k_params), kv_channel_param_words(n_kv, D),
	         0);
	add_span(out, "v_factors", a.words, work, BLOCK_WORDS, WORD(BlockWork, v_factors), kv_factor_words(n_kv, D), 0);
	run("kv_block", fmt::format("{} items of {}", a.work.shape[0], shape_text(src.k)),
	    {{"sources", a.sources}, {"work", a.work}}, std::move(out),
	    [&](Backend& b, const Map& map) { b.kv_block(map(src), map(a)); });
}

void CheckedBackend::score_prompt(View score, View q, View lse, View rows, const KvRows& kv, Saliency s) {
	check_score_prompt(score, q, lse, rows, kv);
	run("score_prompt", fmt::format("q {} rows {} after {}", shape_text(q), rows.elements(), kv.first),
	    {{"q", q}, {"rows", rows}, {"lse", lse}},
	    {{"score", score, tolerance(attend_tolerance(info(), /*prompt=*/true, /*packed=*/false, "attend"))}},
	    [&](Backend& b, const Map& map) { b.score_prompt(map(score), map(q), map(lse), map(rows), map(kv), s); });
}

void CheckedBackend::score_slots(View q, View lse, const ScoreArgs& a) {
	check_score_slots(q, lse, a);
	run("score_slots", fmt::format("q {} rows {} work {}", shape_text(q), a.rows.elements(), a.work.shape[0]),
	    {{"q", q}, {"rows", a.rows}, {"lse", lse}}, {{"score", a.score, tolerance("attend")}},
	    [&](Backend& b, const Map& map) {
		    ScoreArgs args = map(a);
		    const std::vector<ScoreGroup> groups = map.groups(a.groups);
		    args.groups = groups;
		    b.score_slots(map(q), map(lse), args);
	    });
}

void CheckedBackend::weigh(View q, View lse, const WeighArgs& a) {
	check_weigh(q, lse, a);
	const bool packed = std::ranges::any_of(a.groups, [](const WeighGroup& g) { return g.k.bits < 16; });
	const Tolerance t = tolerance(attend_tolerance(info(), /*prompt=*/false, packed, "attend"));
	run("weigh", fmt::format("q {} work {}", shape_text(q), a.work.shape[0]),
	    {{"q", q}, {"work", a.work}, {"lse", lse}}, {{"weight", a.weight, t, true}}, [&](Backend& b, const Map& map) {
		    WeighArgs args = map(a);
		    const std::vector<WeighGroup> groups = map.groups(a.groups);
		    args.groups = groups;
		    b.weigh(map(q), map(lse), args);
	    });
}

// A difference in the last bits of two weights may exchange them: what is compared is how they came about.
void CheckedBackend::top_k(View picks, View weight, View work) {
	check_top_k(picks, weight, work);
	run("top_k", shape_text(work), {{"weight", weight}, {"work", work}}, {},
	    [&](Backend& b, const Map& map) { b.top_k(map(picks), map(weight), map(work)); });
}

// As with top_k(): logits that differ in their last bits may list others.
void CheckedBackend::candidates(View list, View block_max, View x, uint32_t k) {
	check_candidates(list, block_max, x, k);
	run("candidates", fmt::format("{} of {}", k, shape_text(x)), {{"x", x}}, {},
	    [&](Backend& b, const Map& map) { b.candidates(map(list), map(block_max), map(x), k); });
}

void CheckedBackend::scatter(View words, View list) {
	check_scatter(words, list);
	run("scatter", shape_text(list), {{"list", list}}, {},
	    [&](Backend& b, const Map& map) { b.scatter(map(words), map(list)); });
}

void CheckedBackend::part_share(View out, View parts, View work) {
	check_part_share(out, parts, work);
	run("part_share", shape_text(out), {{"work", work}}, {{"out", out, tolerance("attend")}},
	    [&](Backend& b, const Map& map) { b.part_share(map(out), map(parts), map(work)); });
}

// The host has written only to the inner backend's memory.
uint64_t CheckedBackend::transfer(View dst, View src) {
	check_transfer(dst, src);
	if (reference_) {
		const View to = reference(dst);
		reference_->write(*to.buf, to.at, host_bytes(*src.buf).subspan(src.at, src.bytes()));
	}
	return inner_->transfer(inner(dst), inner(src));
}

void CheckedBackend::channel_max(View out, View x) {
	check_channel_max(out, x);
	run("channel_max", shape_text(x), {{"x", x}}, {{"out", out, tolerance("copy")}},
	    [&](Backend& b, const Map& map) { b.channel_max(map(out), map(x)); });
}

void CheckedBackend::kv_balance(View out, View q_max, const KvRows& k, uint32_t n) {
	check_kv_balance(out, q_max, k, n);
	run("kv_balance", fmt::format("{} of {}", n, shape_text(k.k)), {{"q_max", q_max}}, {{"out", out, tolerance("kv")}},
	    [&](Backend& b, const Map& map) { b.kv_balance(map(out), map(q_max), map(k), n); });
}

} // namespace kvrun
