// attend, attend_prompt, weigh and unpack_latents of latent attention on Vulkan: K is a latent, which is read as values
// too.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/kv_page.h"
#include "shared/push.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

LatentShape shape_of(const View& q, const View& q_rope) { return {q.shape[1], q.shape[2], q_rope.shape[2]}; }

} // namespace

// As attend_pages(): the partial states of all work items.
void VulkanBackend::attend_latents(const char* label, View q, const KvRead& kv, bool prompt) {
	const View& q_rope = kv.softmax.q_rope;
	const LatentShape shape = shape_of(q, q_rope);
	bool continues = false;
	for (const AttendGroup& g : kv.groups) {
		const AttendChoice how = choose_attend_latent(caps(), shape, g.format, g.page, prompt, g.sparse,
		                                              kv.softmax.softcap > 0 ? ATTEND_SOFTCAP : 0);
		Pipeline& p = pipeline(how);
		const double page_bytes = 4.0 * (kv_code_words(1, shape.rank, g.format.k.bits, g.page) +
		                                 kv_code_words(1, shape.rope_dim, g.format.v.bits, g.page));
		const double tokens = double(g.n_pages) * g.page * kv.item_rows;
		const uint32_t row_blocks = ceil_div(kv.item_rows, how.tokens), groups = row_blocks * how.blocks;
		const uint32_t most = std::max(1u, caps().groups[0] / groups);
		for (uint32_t done = 0; done < g.n_work; done += most, continues = true) {
			const uint32_t n = std::min(most, g.n_work - done);
			const AttendPush push{.first_work = g.first_work + done,
			                      .n_heads = shape.n_heads,
			                      .n_kv_heads = 1,
			                      .blocks = how.blocks,
			                      .n_rows = q.shape[0],
			                      .item_rows = kv.item_rows,
			                      .row_blocks = row_blocks,
			                      .part_step = kv.part_step,
			                      .merges = 0,
			                      .scale = score_scale(shape.rank),
			                      .softcap = kv.softmax.softcap};
			const double part = double(n) / g.n_work;
			rec_.dispatch(p, push,
			              {bind(kv.parts), bind(q), bind(g.k_codes), bind(g.v_codes), bind(kv.work), bind(kv.tables),
			               bind(g.k_params), bind(g.v_params), bind(q_rope)},
			              {n * groups, 1, 1},
			              {.label = label,
			               .bytes = g.n_pages * page_bytes * part,
			               .flops = 2.0 * tokens * shape.n_heads * (2 * shape.rank + shape.rope_dim) * part,
			               .continues = continues});
		}
	}
}

void VulkanBackend::compute(const op::UnpackLatents& o) {
	const auto& [dst, groups, work, tables] = o;
	const uint32_t rank = dst.k.shape[2], rope_dim = dst.v.shape[2];
	bool continues = false; // work items write different rows
	for (const AttendGroup& g : groups) {
		Pipeline& p = pipeline(choose_unpack_latent(caps(), rank, rope_dim, g.format, g.page));
		for (uint32_t done = 0; done < g.n_work; continues = true) {
			const uint32_t n = std::min(caps().groups[0], g.n_work - done);
			rec_.dispatch(p, UnpackPush{.first_work = g.first_work + done, .first_row = dst.first},
			              {bind(dst.k), bind(dst.v), bind(g.k_codes), bind(g.v_codes), bind(work), bind(tables),
			               bind(g.k_params), bind(g.v_params)},
			              {n, 1, 1},
			              {.label = "unpack_latents", .bytes = o.bytes() * n / work.shape[0], .continues = continues});
			done += n;
		}
	}
}

void VulkanBackend::weigh_latents(const op::Weigh& o) {
	const auto& [q, lse, a] = o;
	const LatentShape shape = shape_of(q, a.q_rope);
	bool continues = false; // work items weigh different slots
	for (const WeighGroup& g : a.groups) {
		const WeighPush push{.first_work = g.first_work,
		                     .n_heads = shape.n_heads,
		                     .n_kv_heads = 1,
		                     .scale = score_scale(shape.rank),
		                     .softcap = a.softcap};
		rec_.dispatch(
		    pipeline(choose_weigh_latent(caps(), shape, {g.k, g.v}, g.page, a.softcap > 0 ? ATTEND_SOFTCAP : 0)), push,
		    {bind(a.weight), bind(q), bind(g.k_codes), bind(g.v_codes), bind(a.work), bind(a.tables), bind(g.k_params),
		     bind(g.v_params), bind(a.q_rope), bind(lse)},
		    {g.n_work, 1, 1},
		    {.label = "weigh",
		     .bytes =
		         4.0 * g.n_pages *
		         (kv_code_words(1, shape.rank, g.k.bits, g.page) + kv_code_words(1, shape.rope_dim, g.v.bits, g.page)),
		     .flops = 2.0 * g.n_pages * g.page * shape.n_heads * (shape.rank + shape.rope_dim),
		     .continues = continues});
		continues = true;
	}
}

void VulkanBackend::attend_own_latents(const op::AttendPrompt& o) {
	const auto& [out, lse, q, own, older] = o;
	constexpr const char* label = "attend_prompt";
	const View& q_rope = own.softmax.q_rope;
	const LatentShape shape = shape_of(q, q_rope);
	const uint32_t rows = q.shape[0];
	if (own.window.chunked) fail(Code::Unsupported, "Vulkan has no latent attention with chunks; use --device cpu");
	if (older) attend_latents(label, q, *older, /*prompt=*/true);
	const uint32_t flags = (older ? PROMPT_STATE
	                        : lse ? PROMPT_LSE
	                              : 0) |
	                       (own.softmax.softcap > 0 ? PROMPT_SOFTCAP : 0) | (own.seen ? PROMPT_SEEN : 0) |
	                       (own.window ? PROMPT_WINDOW : 0) | (own.softmax.sinks && !older ? PROMPT_SINKS : 0);
	const AttendChoice how = choose_attend_latent_prompt(caps(), shape, flags);
	const double pairs = double(rows) * (own.first + 0.5 * (rows + 1));
	const AttendPromptPush push{.first = own.first,
	                            .n_rows = rows,
	                            .n_heads = shape.n_heads,
	                            .n_kv_heads = 1,
	                            .t_cap = own.k.shape[1],
	                            .blocks = how.blocks,
	                            .scale = score_scale(shape.rank),
	                            .window = own.window.tokens,
	                            .softcap = own.softmax.softcap,
	                            .ahead = 0,
	                            .seen_words = own.seen.shape[1],
	                            .seen_at = own.seen_at,
	                            .seen_sets = 1};
	const View result = older ? older->parts : out;
	rec_.dispatch(pipeline(how), push,
	              {bind(result), bind(q), bind(own.k), bind(own.v), bind(older ? older->row_parts : View()),
	               bind(!older && lse ? lse : result), bind(q_rope), bind(own.seen),
	               bind(older ? View() : own.softmax.sinks)},
	              {ceil_div(rows, how.tokens), how.blocks, 1},
	              {.label = label,
	               .bytes = 2.0 * (own.first + rows) * (shape.rank + shape.rope_dim) + 8.0 * double(q.elements()),
	               .flops = 2.0 * pairs * shape.n_heads * (2 * shape.rank + shape.rope_dim),
	               .continues = older != nullptr && !older->groups.empty()});
	if (older) merge_parts(label, out, lse, *older);
}

} // namespace kvrun::vk
