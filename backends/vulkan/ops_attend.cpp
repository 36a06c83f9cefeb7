// attend and attend_prompt on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/kv_page.h"
#include "shared/push.h"
#include <algorithm>
#include <cmath>

namespace kvrun::vk {

void VulkanBackend::check_head_dim(uint32_t head_dim) const {
	if (head_dim % 8 || head_dim > 512)
		fail(Code::Unsupported, "head_dim {}: attention on Vulkan needs a multiple of 8, at most 512; use --device cpu",
		     head_dim);
}

float VulkanBackend::score_scale(uint32_t head_dim) { return 1 / std::sqrt(float(head_dim)); }

// Whether attend.comp merges its own states.
bool VulkanBackend::merges_itself(View q, const KvRead& kv) const {
	return attend_merges(caps()) && kv.most_parts && kv.most_parts <= MERGE_FEW && kv.item_rows == 1 &&
	       size_t(q.shape[0]) * kv.n_kv_heads <= kMergeCounters;
}

// The counters by which a workgroup of attend.comp knows that it is the last of its row and KV head; zero between ops.
View VulkanBackend::merge_counters() {
	if (!merge_counters_) merge_counters_ = alloc(kMergeCounters * 4, Mem::Device, "attention's counters");
	if (!counters_are_zero_) rec_.fill(merge_counters_.id(), 0, kMergeCounters * 4, 0);
	return view(merge_counters_, 0, DType::U32, kMergeCounters);
}

// Enqueues the partial states of all work items. merged: the output, if attend.comp merges them; else empty.
void VulkanBackend::attend_pages(const char* label, View q, const KvRead& kv, bool prompt, View merged) {
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], share = n_heads / kv.n_kv_heads;
	bool continues = false;
	const uint32_t flags =
	    (kv.softmax.softcap > 0 ? ATTEND_SOFTCAP : 0) | (merged && kv.softmax.sinks ? ATTEND_SINKS : 0);
	const View counters = merged ? merge_counters() : View();
	if (merged) counters_are_zero_ = false; // after an error between two groups they may not be zero
	for (const AttendGroup& g : kv.groups) {
		check_attend_format(g.format, head_dim);
		const AttendChoice how = g.sparse ? choose_attend_sparse(caps(), share, g.format, head_dim, g.page, flags)
		                                  : choose_attend(caps(), share, g.format, head_dim, g.page, prompt, flags);
		Pipeline& p = pipeline(how);
		const double page_bytes = 4.0 * (kv_code_words(kv.n_kv_heads, head_dim, g.format.k.bits, g.page) +
		                                 kv_code_words(kv.n_kv_heads, head_dim, g.format.v.bits, g.page));
		const double read = g.n_pages * page_bytes, tokens = double(g.n_pages) * g.page * kv.item_rows;
		const uint32_t row_blocks = ceil_div(kv.item_rows, how.tokens);
		const uint32_t groups = row_blocks * how.blocks; // workgroups of a work item
		const uint32_t most = std::max(1u, caps().groups[0] / groups);
		for (uint32_t done = 0; done < g.n_work; done += most, continues = true) {
			const uint32_t n = std::min(most, g.n_work - done);
			const AttendPush push{.first_work = g.first_work + done,
			                      .n_heads = n_heads,
			                      .n_kv_heads = kv.n_kv_heads,
			                      .blocks = how.blocks,
			                      .n_rows = q.shape[0],
			                      .item_rows = kv.item_rows,
			                      .row_blocks = row_blocks,
			                      .part_step = kv.part_step,
			                      .merges = merged ? 1u : 0u,
			                      .scale = score_scale(head_dim),
			                      .softcap = kv.softmax.softcap};
			const double part = double(n) / g.n_work;
			const Bind binds[] = {bind(kv.parts),
			                      bind(q),
			                      bind(g.k_codes),
			                      bind(g.v_codes),
			                      bind(kv.work),
			                      bind(kv.tables),
			                      bind(g.k_params),
			                      bind(g.v_params),
			                      bind(g.v_factors),
			                      bind(kv.balance),
			                      bind(merged ? merged : kv.parts),
			                      bind(merged ? kv.row_parts : View()),
			                      bind(merged ? counters : kv.parts),
			                      bind(merged ? kv.softmax.sinks : View())};
			rec_.dispatch(p, push, std::span(binds, p.reflection->bindings.size()), {n * groups, kv.n_kv_heads, 1},
			              {.label = label,
			               .bytes = read * part,
			               .flops = 4.0 * tokens * n_heads * head_dim * part,
			               .continues = continues});
		}
	}
	if (merged) counters_are_zero_ = true;
}

void VulkanBackend::merge_parts(const char* label, View out, View lse, const KvRead& kv) {
	const uint32_t rows = out.shape[0], n_heads = out.shape[1], head_dim = out.shape[2];
	Pipeline& p =
	    pipeline(choose_attend_merge(caps(), head_dim, (lse ? MERGE_LSE : 0) | (kv.softmax.sinks ? MERGE_SINKS : 0)));
	rec_.dispatch(p, AttendMergePush{.n_heads = n_heads},
	              {bind(out), bind(kv.parts), bind(kv.row_parts), bind(lse ? lse : out), bind(kv.softmax.sinks)},
	              {n_heads, rows, 1}, {.label = label, .bytes = 4.0 * double(out.elements() + kv.parts.elements())});
}

void VulkanBackend::compute(const op::Attend& o) {
	const auto& [out, lse, q, kv] = o;
	check_head_dim(q.shape[2]);
	if (kv.softmax.q_rope) {
		attend_latents("attend", q, kv, /*prompt=*/false);
		return merge_parts("attend", out, lse, kv);
	}
	const bool merged = !lse && merges_itself(q, kv);
	attend_pages("attend", q, kv, /*prompt=*/false, merged ? out : View());
	if (!merged) merge_parts("attend", out, lse, kv);
}

void VulkanBackend::compute(const op::AttendPrompt& o) {
	const auto& [out, lse, q, own, older] = o;
	const uint32_t rows = q.shape[0], n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = own.k.shape[0];
	check_head_dim(head_dim);
	constexpr const char* label = "attend_prompt";
	if (own.softmax.q_rope) return attend_own_latents(o);
	if (older) attend_pages(label, q, *older, /*prompt=*/true, View());
	const uint32_t flags = (older ? PROMPT_STATE
	                        : lse ? PROMPT_LSE
	                              : 0) |
	                       (own.window ? PROMPT_WINDOW : 0) | (own.window.chunked ? PROMPT_CHUNKS : 0) |
	                       (own.softmax.softcap > 0 ? PROMPT_SOFTCAP : 0) |
	                       (own.softmax.sinks && !older ? PROMPT_SINKS : 0) | (own.seen ? PROMPT_SEEN : 0) |
	                       (own.slopes ? PROMPT_SLOPES : 0);
	const AttendChoice how = choose_attend_prompt(caps(), n_heads / n_kv_heads, head_dim, flags);
	const double all = own.first + rows, window = own.window ? own.window.tokens : all;
	const double tokens = std::min(all, rows + window),
	             pairs = own.ahead ? rows * std::min(all, window + own.ahead) // at most
	                               : std::min(double(rows) * (own.first + 0.5 * (rows + 1)), rows * window);
	const AttendPromptPush push{.first = own.first,
	                            .n_rows = rows,
	                            .n_heads = n_heads,
	                            .n_kv_heads = n_kv_heads,
	                            .t_cap = own.k.shape[1],
	                            .blocks = how.blocks,
	                            .scale = score_scale(head_dim),
	                            .window = own.window.tokens,
	                            .softcap = own.softmax.softcap,
	                            .ahead = std::min(own.ahead, rows),
	                            .seen_words = own.seen.shape[1],
	                            .seen_at = own.seen_at,
	                            .seen_sets = own.seen_sets(rows)};
	// The result is also bound in place of an unused lse: a bind for writing counts as a write.
	const View result = older ? older->parts : out;
	rec_.dispatch(pipeline(how), push,
	              {bind(result), bind(q), bind(own.k), bind(own.v), bind(older ? older->row_parts : View()),
	               bind(!older && lse ? lse : result),
	               bind(older        ? View()
	                    : own.slopes ? own.slopes
	                                 : own.softmax.sinks),
	               bind(own.seen)},
	              {ceil_div(rows, how.tokens), n_kv_heads * how.blocks, 1},
	              {.label = label,
	               .bytes = 4.0 * tokens * n_kv_heads * head_dim + 8.0 * double(q.elements()),
	               .flops = 4.0 * pairs * n_heads * head_dim,
	               .continues = older != nullptr && !older->groups.empty()});
	if (older) merge_parts(label, out, lse, *older);
}

} // namespace kvrun::vk
