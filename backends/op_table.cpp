// Conditions on arguments, texts and byte counts that the rows of the operation table do not state.
#include "backends/op_table.h"
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvrun {

bool op::packed(const KvRead& kv) {
	return std::ranges::any_of(kv.groups,
	                           [](const AttendGroup& g) { return g.format.k.bits < 16 || g.format.v.bits < 16; });
}

namespace op {
namespace {

// ---- conditions that ops share

void check_heads(const View& q, uint32_t n_kv_heads, uint32_t head_dim) {
	KV_ASSERT(q.shape[0] >= 1 && n_kv_heads >= 1 && q.shape[1] % n_kv_heads == 0);
	KV_ASSERT(q.shape[2] == head_dim && head_dim % 2 == 0 && head_dim > 0);
}

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
void check_format(const Format& f, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim) {
	check_quant(f.k, true, n_kv_heads, k_dim);
	check_quant(f.v, false, n_kv_heads, v_dim);
}

void check_head_dim(const KvRows& kv) { KV_ASSERT(kv.k.shape[2] % 2 == 0 && kv.v.shape[2] % 2 == 0); }

bool is_page(uint32_t page) { return page == 32 || page == 64 || page == 128; }

// Whether the group's work items lie within the op's work items.
bool has_work(const auto& group, const View& work) {
	return is_page(group.page) && uint64_t(group.first_work) + group.n_work <= work.shape[0];
}

void check_softmax(const Softmax& s, const View& q) {
	KV_ASSERT(s.softcap >= 0 && std::isfinite(s.softcap) && (!s.sinks || s.sinks.elements() == q.shape[1]));
}

// Channels of V of a kv head.
uint32_t v_dim(const View& q, const Softmax& s) { return s.q_rope ? s.q_rope.shape[2] : q.shape[2]; }

void check_read(const View& q, const KvRead& kv) {
	check_heads(q, kv.n_kv_heads, q.shape[2]);
	check_softmax(kv.softmax, q);
	KV_ASSERT(kv.item_rows > 0);
	for (const AttendGroup& g : kv.groups) {
		KV_ASSERT(has_work(g, kv.work));
		check_format(g.format, kv.n_kv_heads, q.shape[2], v_dim(q, kv.softmax));
		KV_ASSERT(g.format.k.bits > 0 && g.format.v.bits > 0);
	}
}

void check_rows(const KvRows& rows, uint32_t n) {
	check_head_dim(rows);
	KV_ASSERT(n >= 1 && uint64_t(rows.first) + n <= rows.k.shape[1]);
}

void check_seen(const KvRows& kv, uint32_t n) {
	if (!kv.seen) return;
	KV_ASSERT(!kv.window && !kv.ahead);
	KV_ASSERT(uint64_t(kv.seen_at) + kv.first + n <= uint64_t(kv.seen.shape[1]) * 32);
}

// ---- bytes and texts that ops share

// Bytes of codes.
double page_bytes(std::span<const AttendGroup> groups, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim) {
	double words = 0;
	for (const AttendGroup& g : groups)
		words += g.n_pages * (double(kv_code_words(n_kv_heads, k_dim, g.format.k.bits, g.page)) +
		                      double(kv_code_words(n_kv_heads, v_dim, g.format.v.bits, g.page)));
	return 4 * words;
}
double page_bytes(const View& q, const KvRead& kv) {
	return page_bytes(kv.groups, kv.n_kv_heads, q.shape[2], v_dim(q, kv.softmax));
}

double row_bytes(const KvRows& kv, uint32_t n) { return 4. * n * kv.k.shape[0] * (kv.k.shape[2] + kv.v.shape[2]); }

std::string weight_text(const View& w) { return fmt::format("{} {}", dtype_info(w.type).name, shape_text(w)); }

// ---- memory that ops write

struct Items { // work items; field `field` is the word where an item writes, or kSkip: nowhere
	std::span<const uint32_t> work;
	size_t stride, field;
};

// The words from the first to the last that work items write; n words each.
void add_span(std::vector<WrittenWords>& out, const char* name, const View& pool, const Items& items, uint32_t n,
              uint32_t bits) {
	size_t first = SIZE_MAX, end = 0;
	for (size_t i = items.field; i < items.work.size(); i += items.stride)
		if (const uint32_t at = items.work[i]; at != kSkip)
			first = std::min(first, size_t(at)), end = std::max(end, size_t(at) + n);
	if (end == 0) return;
	KV_ASSERT(pool && end <= pool.elements());
	out.push_back({name, view(*pool.buf, pool.at + first * 4, DType::U32, uint32_t(end - first)), bits});
}

// The words of k and v from the first to the last that rows of heads are written to, by the current contents of `at`.
std::vector<WrittenWords> written_places(const KvDst& d, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim,
                                         const WordReader& words) {
	const std::vector<uint32_t> at = words(d.at);
	KV_ASSERT(at.size() >= size_t(n_kv_heads) * 2);
	std::vector<WrittenWords> r;
	add_span(r, "dst.k", d.k, {at, 2, 0}, (k_dim / 2 - 1) * d.k_word_stride + 1, 0);
	add_span(r, "dst.v", d.v, {at, 2, 1}, v_dim / 2, 0);
	return r;
}

} // namespace

std::string RmsNorm::text() const {
	return groups() > 1 ? fmt::format("{} groups {}", shape_text(x), groups()) : shape_text(x);
}
std::string Embed::text() const { return fmt::format("{} of {}", shape_text(out), weight_text(table)); }
double Embed::bytes() const {
	const uint32_t dim = table.shape[1];
	return double(out.shape[0]) * double(dtype_row_bytes(table.type, dim) + 4 * size_t(dim));
}

std::string projection_text(const View& x, std::span<const Proj> projs) {
	std::string r = fmt::format("x {}", shape_text(x));
	for (const Proj& p : projs) r += fmt::format(" w {}", weight_text(p.w));
	return r;
}

void check_projections(std::span<const Proj> projs, const View& x, Epilogue epilogue) {
	KV_ASSERT(!projs.empty() && x.shape[0] >= 1 && epilogue != Epilogue::ClampedSwiGLU);
	KV_ASSERT(epilogue != Epilogue::SwiGLU || (projs.size() == 2 && projs[0].w.shape[0] == projs[1].w.shape[0]));
}

// ---- mixtures of experts

std::string Route::text() const { return fmt::format("{} of {}", ids.shape[1], shape_text(logits)); }
void Route::check() const {
	const uint32_t n = logits.shape[1], used = ids.shape[1];
	KV_ASSERT(logits.shape[0] >= 1);
	KV_ASSERT(used >= 1 && used <= n && used <= KV_MOST_USED && n <= KV_MOST_EXPERTS);
	KV_ASSERT(how.used_groups >= 1 && how.used_groups <= how.n_groups && how.n_groups <= KV_MOST_GROUPS);
	KV_ASSERT(bool(how.of_tokens) == bool(how.tokens) && !(how.of_tokens && (how.bias || how.expert_scale)));
	KV_ASSERT(how.gating != Gating::Near || (!how.of_tokens && !how.bias && how.n_groups == 1));
	KV_ASSERT(n % how.n_groups == 0 && uint64_t(n / how.n_groups) * how.used_groups >= used);
}

std::string ExpertMatmul::text() const {
	return fmt::format("x {} ids {} of {}{}", shape_text(x), shape_text(rows.ids), rows.n_experts,
	                   projection_text(x, projs).substr(2 + shape_text(x).size()));
}
void ExpertMatmul::check() const {
	const uint32_t T = rows.ids.shape[0], used = rows.ids.shape[1];
	KV_ASSERT(epilogue != Epilogue::Add && T >= 1 && used >= 1 && (x.shape[0] == T || x.shape[0] == T * used));
	KV_ASSERT(rows.n_experts >= 1 && rows.n_experts <= KV_MOST_EXPERTS && used <= KV_MOST_EXPERTS);
	KV_ASSERT(bool(rows.tiles) == !decode);
	KV_ASSERT(epilogue == Epilogue::None ? !projs.empty()
	                                     : projs.size() == 2 && projs[0].w.shape[0] == projs[1].w.shape[0]);
	for (const Proj& p : projs) KV_ASSERT(p.w.shape[0] % rows.n_experts == 0);
}
double ExpertMatmul::read_share() const {
	return std::min(double(rows.ids.elements()), double(rows.n_experts)) / rows.n_experts;
}
double ExpertMatmul::bytes() const { // weights of chosen experts, at most
	const double slots = double(rows.ids.elements());
	double r = 4. * double(x.elements());
	for (const Proj& p : projs) {
		const double d = p.w.shape[0] / rows.n_experts;
		r += std::min(slots, double(rows.n_experts)) * d * double(dtype_row_bytes(p.w.type, p.w.shape[1])) +
		     4. * slots * d;
	}
	return r;
}

// ---- keys and values on their way into the cache

std::string RopeStore::text() const {
	return fmt::format("q {} k {} rotary {}{}{}", shape_text(q), shape_text(k), rope.rotary_dim,
	                   rope.neox ? " neox" : "", norm.weigh_last ? " norm last" : "") +
	       (rope.first ? fmt::format(" from {}", rope.first) : "") + (rope.back ? " back" : "");
}
void RopeStore::check() const {
	check_heads(q, k.shape[1], v.shape[2]);
	KV_ASSERT(rope.of_values ? !norm.q && !norm.k && k.shape[2] % 2 == 0 : k.shape[2] == v.shape[2]);
	KV_ASSERT(rope.rotary_dim % 2 == 0 && rope.first % 2 == 0 && rope.first + rope.rotary_dim <= q.shape[2]);
	KV_ASSERT(dst.k_word_stride >= 1);
}
double RopeStore::bytes() const {
	return 4. * double(2 * q.elements() + rope.table.elements()) + 6. * double(k.elements() + v.elements());
}
std::vector<WrittenWords> RopeStore::written(const WordReader& words) const {
	return written_places(dst, k.shape[1], k.shape[2], v.shape[2], words);
}

std::string KvStore::text() const { return fmt::format("{} of {}", n, shape_text(src.k)); }
void KvStore::check() const {
	check_rows(src, n);
	KV_ASSERT(dst.k_word_stride >= 1);
}
double KvStore::bytes() const { return row_bytes(src, n); }
std::vector<WrittenWords> KvStore::written(const WordReader& words) const {
	return written_places(dst, src.k.shape[0], src.k.shape[2], src.v.shape[2], words);
}

std::string KvLoad::text() const { return fmt::format("{} of {}", n, shape_text(dst.k)); }
void KvLoad::check() const {
	check_rows(dst, n);
	KV_ASSERT(src.k_word_stride >= 1);
}
double KvLoad::bytes() const { return row_bytes(dst, n); }

std::string JoinHeads::text() const { return fmt::format("{} tokens to {}", n, shape_text(out.v)); }
void JoinHeads::check() const {
	for (const HeadRows* x : {&out, &a, &b}) {
		if (!x->v) continue;
		KV_ASSERT(x->v.shape[3] == 1 && x->channels() % 2 == 0);
		KV_ASSERT(x->first + n <= x->v.shape[x->halves() ? 1 : 0] && (x->halves() || !x->first));
	}
	KV_ASSERT(a.n_heads() == out.n_heads() && (!b.v || b.n_heads() == out.n_heads() || b.n_heads() == 1));
}
double JoinHeads::bytes() const {
	const auto of = [](const HeadRows& x, uint32_t channels) {
		return (x.halves() ? 2. : 4.) * x.n_heads() * std::min(channels, x.channels());
	};
	const uint32_t wide = out.channels(), left = wide - std::min(wide, a.channels());
	return n * (of(out, wide) + of(a, wide) + (b.v ? of(b, left) : 0));
}

// ---- attention

std::string Attend::text() const {
	return fmt::format("q {} kv heads {} work {}", shape_text(q), kv.n_kv_heads, kv.work.shape[0]);
}
void Attend::check() const { check_read(q, kv); }
double Attend::bytes() const { return 8. * double(q.elements()) + page_bytes(q, kv); }

std::string AttendPrompt::text() const {
	return fmt::format("q {} after {} of {}{}{}{}", shape_text(q), own.first, shape_text(own.k),
	                   !own.ahead              ? ""
	                   : own.ahead == kAllRows ? ", together"
	                                           : fmt::format(", {} ahead", own.ahead),
	                   own.slopes ? ", slopes" : "", older ? fmt::format(" and {} pieces", older->work.shape[0]) : "");
}
void AttendPrompt::check() const {
	check_rows(own, q.shape[0]);
	check_heads(q, own.k.shape[0], own.k.shape[2]);
	check_softmax(own.softmax, q);
	KV_ASSERT(own.v.shape[2] == v_dim(q, own.softmax));
	KV_ASSERT(!(own.ahead && (own.window.chunked || own.softmax.q_rope)));
	check_seen(own, q.shape[0]);
	KV_ASSERT(!own.slopes || (own.slopes.elements() == q.shape[1] && !older && !own.softmax.sinks &&
	                          !own.softmax.q_rope && own.softmax.softcap == 0));
	if (!older) return;
	KV_ASSERT(bool(older->softmax.q_rope) == bool(own.softmax.q_rope));
	KV_ASSERT(older->softmax.softcap == own.softmax.softcap && bool(older->softmax.sinks) == bool(own.softmax.sinks));
	KV_ASSERT(!own.window);
	check_read(q, *older);
	KV_ASSERT(older->n_kv_heads == own.k.shape[0]);
}
double AttendPrompt::bytes() const {
	return 8. * double(q.elements()) + row_bytes(own, own.first + q.shape[0]) / 2 +
	       (older ? page_bytes(q, *older) : 0.);
}

std::string UnpackLatents::text() const {
	return fmt::format("{} items to {} and {}", work.shape[0], shape_text(dst.k), dst.v.shape[2]);
}
void UnpackLatents::check() const {
	check_head_dim(dst);
	KV_ASSERT(dst.k.shape[0] == 1);
	for (const AttendGroup& g : groups) {
		KV_ASSERT(g.first_work + g.n_work <= work.shape[0] && is_page(g.page));
		KV_ASSERT(g.format.k.prescale == Prescale::None && g.format.v.prescale == Prescale::None);
		KV_ASSERT(g.format.v.scale != Scale::Codebook);
	}
}
double UnpackLatents::bytes() const {
	double tokens = 0;
	for (const AttendGroup& g : groups) tokens += g.n_pages * g.page;
	return page_bytes(groups, 1, dst.k.shape[2], dst.v.shape[2]) + 2. * tokens * (dst.k.shape[2] + dst.v.shape[2]);
}

// ---- packing

std::string KvPack::text() const {
	return fmt::format("{} items of {} K {} bits V {} bits", args.work.shape[0], shape_text(src.k), args.format.k.bits,
	                   args.format.v.bits);
}
void KvPack::check() const {
	const Quant &k = args.format.k, &v = args.format.v;
	check_head_dim(src);
	check_format(args.format, src.k.shape[0], src.k.shape[2], src.v.shape[2]);
	KV_ASSERT(k.bits < 16 && v.bits < 16 && (k.bits || v.bits) && is_page(args.page));
	KV_ASSERT(!args.k_block || (k.scale == Scale::PerChannel && k.eta == 0));
}
double KvPack::bytes() const {
	return double(args.n_heads) *
	       (src.k.shape[2] * (2 + args.format.k.bits / 8.) + src.v.shape[2] * (2 + args.format.v.bits / 8.));
}

#define WORD(Work, field) (offsetof(Work, field) / sizeof(uint32_t))

std::vector<WrittenWords> KvPack::written(const WordReader& words) const {
	const PackArgs& a = args;
	const std::vector<uint32_t> work = words(a.work);
	const uint32_t n_kv = src.k.shape[0], k_dim = src.k.shape[2], v_dim = src.v.shape[2];
	const Quant &k = a.format.k, &v = a.format.v;
	std::vector<WrittenWords> out; // parameters first: codes depend on them
	const auto add_params = [&](const char* name, const View& pool, size_t field, const Quant& q, uint32_t D) {
		const uint32_t n = page_param_words(q, n_kv, D, a.page);
		if (q.param_bits == 16) return add_span(out, name, pool, {work, PACK_WORDS, field}, n, 0);
		const uint32_t bytes = q.scale == Scale::Codebook // bytes: number of words; halves follow
		                           ? kv_norm_scale_word(n_kv, 0, a.page)
		                           : kv_byte_largest_word(ParamPage{q, nullptr, n_kv, D, a.page}.n_params(), 0);
		for (size_t i = 0; i < work.size(); i += PACK_WORDS) {
			const uint32_t at[2] = {work[i + field], work[i + field] + bytes};
			add_span(out, name, pool, {std::span(at, 1), 1, 0}, bytes, 8);
			add_span(out, name, pool, {std::span(at + 1, 1), 1, 0}, n - bytes, 0);
		}
	};
	const auto add_codes = [&](const char* name, const View& pool, size_t field, const Quant& q, uint32_t D) {
		const uint32_t plane_bits = q.bits == 3 ? 1u : uint32_t(q.bits);
		add_span(out, name, pool, {work, PACK_WORDS, field}, kv_code_words(n_kv, D, q.bits, a.page), plane_bits);
	};
	if (k.bits && !a.k_block) add_params("k_params", a.k_params, WORD(PackWork, k_params), k, k_dim);
	if (v.bits) add_params("v_params", a.v_params, WORD(PackWork, v_params), v, v_dim);
	if (k.bits) add_codes("k_codes", a.k_codes, WORD(PackWork, k_codes), k, k_dim);
	if (v.bits) add_codes("v_codes", a.v_codes, WORD(PackWork, v_codes), v, v_dim);
	return out;
}

std::string KvBlock::text() const { return fmt::format("{} items of {}", args.work.shape[0], shape_text(src.k)); }
void KvBlock::check() const {
	check_head_dim(src);
	check_format(args.format, src.k.shape[0], src.k.shape[2], src.v.shape[2]);
}
double KvBlock::bytes() const {
	return 2. * double(args.sources.elements()) * src.k.shape[0] * (src.k.shape[2] + src.v.shape[2]);
}
std::vector<WrittenWords> KvBlock::written(const WordReader& words) const {
	const std::vector<uint32_t> work = words(args.work);
	const uint32_t n_kv = src.k.shape[0];
	std::vector<WrittenWords> out;
	add_span(out, "k_params", args.words, {work, BLOCK_WORDS, WORD(BlockWork, k_params)},
	         kv_channel_param_words(n_kv, src.k.shape[2]), 0);
	add_span(out, "v_factors", args.words, {work, BLOCK_WORDS, WORD(BlockWork, v_factors)},
	         kv_factor_words(n_kv, src.v.shape[2]), 0);
	return out;
}

#undef WORD

// ---- saliency

std::string ScorePrompt::text() const {
	return fmt::format("q {} rows {} after {}", shape_text(q), rows.elements(), kv.first);
}
void ScorePrompt::check() const {
	check_rows(kv, q.shape[0]);
	check_heads(q, kv.k.shape[0], kv.k.shape[2]);
	check_seen(kv, q.shape[0]);
	KV_ASSERT(!kv.softmax.q_rope || saliency == Saliency{});
	KV_ASSERT(score.shape[1] >= kv.first + q.shape[0]);
}
double ScorePrompt::bytes() const {
	const double n = double(kv.first) + q.shape[0], n_kv = kv.k.shape[0], D = q.shape[2];
	return 4. * double(rows.elements()) * q.shape[1] * D + 2 * n * n_kv * D + 8 * n * n_kv;
}

std::string ScoreSlots::text() const {
	return fmt::format("q {} rows {} work {}", shape_text(q), args.rows.elements(), args.work.shape[0]);
}
void ScoreSlots::check() const {
	check_heads(q, args.n_kv_heads, q.shape[2]);
	for (const ScoreGroup& g : args.groups) {
		KV_ASSERT(has_work(g, args.work));
		KV_ASSERT(!args.q_rope || (g.v_codes && g.saliency == Saliency{}));
	}
}
double ScoreSlots::bytes() const {
	double r = 4. * double(args.rows.elements()) * double(q.row_elements());
	for (const ScoreGroup& g : args.groups) r += 2. * g.n_pages * g.page * args.n_kv_heads * q.shape[2];
	return r;
}

std::string KvBalance::text() const { return fmt::format("{} of {}", n, shape_text(k.k)); }

// ---- fetching

std::string Weigh::text() const { return fmt::format("q {} work {}", shape_text(q), args.work.shape[0]); }
void Weigh::check() const {
	check_heads(q, args.n_kv_heads, q.shape[2]);
	KV_ASSERT(!args.q_rope || args.n_kv_heads == 1);
	for (const WeighGroup& g : args.groups) KV_ASSERT(has_work(g, args.work));
}
double Weigh::bytes() const {
	double r = 4. * double(q.elements());
	for (const WeighGroup& g : args.groups) r += g.k.bits / 8. * g.n_pages * g.page * args.n_kv_heads * q.shape[2];
	return r;
}

std::string Candidates::text() const { return fmt::format("{} of {}", k, shape_text(x)); }

} // namespace op
} // namespace kvrun
