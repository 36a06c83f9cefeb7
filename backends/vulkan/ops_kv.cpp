// rope_store, kv_store, kv_load, join_heads, kv_pack, kv_block on Vulkan: keys and values on their way into and out of
// pages.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "engine/kv_host/quant.h"
#include "shared/flags.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

bool rope_takes_vec4(uint32_t head_dim, uint32_t rotary_dim, bool neox) {
	return head_dim % 4 == 0 && rotary_dim % (neox ? 8 : 4) == 0;
}

} // namespace

void VulkanBackend::compute(const op::RopeStore& o) {
	const auto& [q, k, v, rope, norm, dst] = o;
	const uint32_t rows = q.shape[0], n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = k.shape[1];
	const uint32_t flags = (rope.neox ? ROPE_NEOX : 0) | (norm.q ? ROPE_NORM_Q : 0) | (norm.k ? ROPE_NORM_K : 0) |
	                       (norm.weigh_last && (norm.q || norm.k) ? ROPE_WEIGH_LAST : 0) |
	                       (rope.of_values ? ROPE_OF_VALUES : 0) | (rope.back ? ROPE_BACK : 0);
	const bool vec4_aligned = !rope.of_values && !rope.first && !rope.back &&
	                          rope_takes_vec4(head_dim, rope.rotary_dim, rope.neox) &&
	                          aligned16({q, k, v, rope.table, norm.q, norm.k});
	Pipeline& p = pipeline(choose_rope_store(caps(), vec4_aligned, head_dim, flags));
	const uint32_t across = std::min(rows, kMostRows);
	const RopeStorePush push{.n_heads = n_heads,
	                         .n_kv_heads = n_kv_heads,
	                         .rotary_dim = rope.rotary_dim,
	                         .k_word_stride = dst.k_word_stride,
	                         .rows = rows,
	                         .row_stride = across,
	                         .eps = norm.eps,
	                         .k_dim = k.shape[2],
	                         .first = rope.first};
	const Bind binds[] = {bind(q),      bind(dst.k),  bind(dst.v),  bind(k), bind(v), bind(rope.table),
	                      bind(dst.at), bind(norm.q), bind(norm.k), bind(q)}; // the last: rope_store_vec4 reads q by it
	rec_.dispatch(
	    p, push, std::span(binds).first(vec4_aligned ? 10 : 9),
	    {across, n_heads + 2 * n_kv_heads, ceil_div(rows, kMostRows)},
	    {.label = "rope_store", .bytes = 8.0 * double(q.elements()) + 6.0 * double(k.elements() + v.elements())});
}

void VulkanBackend::compute(const op::KvStore& o) {
	const auto& [src, n, dst] = o;
	const uint32_t n_kv_heads = src.k.shape[0], t_cap = src.k.shape[1], k_dim = src.k.shape[2], v_dim = src.v.shape[2];
	const Choice how = choose_kv_store(caps(), k_dim, v_dim == k_dim ? 0 : v_dim);
	Pipeline& p = pipeline(how);
	const KvStorePush push{.n_kv_heads = n_kv_heads,
	                       .k_words = k_dim / 2,
	                       .v_words = v_dim / 2,
	                       .t_cap = t_cap,
	                       .first = src.first,
	                       .n = n,
	                       .k_word_stride = dst.k_word_stride};
	rec_.dispatch(p, push, {bind(dst.k), bind(dst.v), bind(src.k), bind(src.v), bind(dst.at)},
	              {ceil_div(n, how.spec[0].value), n_kv_heads, (k_dim + v_dim) / 2},
	              {.label = "kv_store", .bytes = 4.0 * n * n_kv_heads * (k_dim + v_dim)});
}

void VulkanBackend::compute(const op::KvLoad& o) {
	const auto& [dst, n, src] = o;
	const uint32_t n_kv_heads = dst.k.shape[0], k_words = dst.k.shape[2] / 2, v_words = dst.v.shape[2] / 2;
	const Choice how = choose_kv_load();
	const uint32_t local = how.spec[0].value, words = std::max(k_words, v_words);
	const uint32_t most = caps().groups[0] / ceil_div(words, local); // rows of a dispatch
	for (uint32_t first = 0; first < n; first += most) {
		const uint32_t some = std::min(most, n - first);
		const KvStorePush push{.n_kv_heads = n_kv_heads,
		                       .k_words = k_words,
		                       .v_words = v_words,
		                       .t_cap = dst.k.shape[1],
		                       .first = dst.first + first,
		                       .n = some,
		                       .k_word_stride = src.k_word_stride};
		rec_.dispatch(
		    pipeline(how), push, {bind(dst.k), bind(dst.v), bind(src.k), bind(src.v), bind(rows(src.at, first, some))},
		    {uint32_t(ceil_div(uint64_t(some) * words, local)), n_kv_heads, 2},
		    {.label = "kv_load", .bytes = 8.0 * some * n_kv_heads * (k_words + v_words), .continues = first > 0});
	}
}

void VulkanBackend::compute(const op::JoinHeads& o) {
	const auto& [out, a, b, n] = o;
	const auto words = [](const HeadRows& x, size_t elements) {
		return uint32_t(x.halves() ? elements / 2 : elements);
	};
	const uint32_t n_heads = out.n_heads(), pairs = out.channels() / 2;
	const uint32_t flags = (out.halves() ? JOIN_OUT_HALVES : 0) | (a.halves() ? JOIN_A_HALVES : 0) |
	                       (b.v ? JOIN_B | (b.halves() ? JOIN_B_HALVES : 0) : 0);
	JoinHeadsPush push{.n_pairs = n * pairs,
	                   .pairs = pairs,
	                   .a_pairs = a.channels() / 2,
	                   .b_pairs = b.channels() / 2,
	                   .out_at = words(out, out.start()),
	                   .out_head = words(out, out.head_stride()),
	                   .out_token = words(out, out.token_stride()),
	                   .a_at = words(a, a.start()),
	                   .a_head = words(a, a.head_stride()),
	                   .a_token = words(a, a.token_stride()),
	                   .b_at = 0,
	                   .b_head = 0,
	                   .b_token = 0};
	if (b.v) {
		push.b_at = words(b, b.start()), push.b_token = words(b, b.token_stride());
		if (b.n_heads() > 1) push.b_head = words(b, b.head_stride());
	}
	const Choice how = choose_join_heads(flags);
	rec_.dispatch(pipeline(how), push, {bind(out.v), bind(a.v), bind(b.v)},
	              {ceil_div(push.n_pairs, how.spec[0].value), n_heads, 1}, {.label = "join_heads", .bytes = o.bytes()});
}

void VulkanBackend::compute(const op::KvPack& o) {
	const KvRows& src = o.src;
	const PackArgs& a = o.args;
	const uint32_t n_kv_heads = src.k.shape[0], t_cap = src.k.shape[1], n_work = a.work.shape[0];
	bool continues = false;
	const auto side = [&](const Quant& q, bool values, const View& x, const View& codes, const View& params) {
		if (!q.bits) return;
		const Eta eta(q.eta);
		const KvPackPush push{
		    .t_cap = t_cap, .n_kv_heads = n_kv_heads, .zero_shift = eta.zero_shift, .scale_factor = eta.scale_factor};
		const uint32_t head_dim = x.shape[2];
		const double bytes = double(a.n_heads) * head_dim * (2 + q.bits / 8.0);
		// A page's parts do not overlap: K and V of the same tokens need not wait for each other. Channel factors are
		// read from memory that is bound together with the codes written before, which counts as a hazard.
		if (q.scale == Scale::Codebook) {
			rec_.dispatch(pipeline(choose_pack_pages(q, values, head_dim, a.page)), push,
			              {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work)}, {n_work, n_kv_heads, 1},
			              {.label = "kv_pack", .bytes = bytes, .continues = continues});
		} else if (!values && q.scale == Scale::PerChannel) {
			const uint32_t flags = (a.k_block ? PACK_K_BLOCK : 0) |
			                       (q.prescale == Prescale::Balance ? PACK_K_BALANCE : 0) |
			                       (q.param_bits == 8 ? PACK_K_BYTES : 0);
			rec_.dispatch(pipeline(choose_pack_channels(q, head_dim, a.page, flags)), push,
			              {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work), bind(a.balance)},
			              {n_work, n_kv_heads, 1}, {.label = "kv_pack", .bytes = bytes, .continues = continues});
		} else if (q.param_bits == 8) {
			rec_.dispatch(pipeline(choose_pack_runs(q, head_dim, a.page)), push,
			              {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work)}, {n_work, n_kv_heads, 1},
			              {.label = "kv_pack", .bytes = bytes, .continues = continues});
		} else {
			const bool factors = values && q.prescale == Prescale::SqrtMax,
			           balance = !values && q.prescale == Prescale::Balance;
			const uint32_t flags =
			    (values ? PACK_T_VALUES : 0) | (balance ? PACK_T_BALANCE : 0) | (factors ? PACK_T_FACTORS : 0);
			const Choice how = choose_pack_tokens(caps(), q, head_dim, a.page, flags);
			const uint64_t pairs = uint64_t(a.page) * n_kv_heads * head_dim / q.group;
			rec_.dispatch(pipeline(how), push,
			              {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work),
			               bind(balance   ? a.balance
			                    : factors ? a.v_factors
			                              : View())},
			              {uint32_t(ceil_div(pairs, how.spec[0].value)), n_work, 1},
			              {.label = "kv_pack", .bytes = bytes, .continues = continues && !factors});
		}
		// kv_pack_channels also reads parameters, which counts as a read of all that is bound.
		continues = q.scale != Scale::PerChannel;
	};
	side(a.format.k, false, src.k, a.k_codes, a.k_params);
	side(a.format.v, true, src.v, a.v_codes, a.v_params);
}

void VulkanBackend::compute(const op::KvBlock& o) {
	const auto& [src, a] = o;
	const uint32_t n_kv_heads = src.k.shape[0], head_dim = src.k.shape[2], n_work = a.work.shape[0];
	const bool balanced = a.format.k.prescale == Prescale::Balance && a.balance;
	rec_.dispatch(
	    pipeline(choose_kv_block(caps(), a.format.k.bits, balanced)),
	    KvBlockPush{.t_cap = src.k.shape[1], .head_dim = head_dim},
	    {bind(a.words), bind(src.k), bind(src.v), bind(a.sources), bind(a.work), bind(balanced ? a.balance : View())},
	    {ceil_div(head_dim / 2, 32), n_kv_heads, n_work},
	    {.label = "kv_block", .bytes = 4.0 * double(a.sources.elements()) * n_kv_heads * head_dim});
}

} // namespace kvrun::vk
