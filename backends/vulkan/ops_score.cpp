// score_prompt, score_slots, channel_max, kv_balance on Vulkan: what saliency and channel balancing need to know.
#include "backends/check.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <cmath>

namespace kvrun::vk {
namespace {

uint32_t lanes(const Caps& c) { return c.is_cpu ? c.subgroup : 64; }
Kernel prompt_kernel(const Caps& c) { return c.texel_range ? Kernel::score_prompt_texel : Kernel::score_prompt; }
uint32_t groups(uint32_t n, uint32_t each) { return (n + each - 1) / each; }
float score_scale(uint32_t head_dim) { return 1 / std::sqrt(float(head_dim)); }

void check_head_dim(uint32_t head_dim) {
	if (head_dim % 8 || head_dim > 256)
		fail(Code::Unsupported, "head_dim {}: attention on Vulkan needs a multiple of 8, at most 256; use --device cpu", head_dim);
}

} // namespace

void VulkanBackend::score_prompt(View score, View q, View rows, const PromptKv& kv) {
	check_score_prompt(score, q, rows, kv);
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = kv.k.shape[0], n_tokens = kv.first + q.shape[0];
	const uint32_t n_rows = uint32_t(rows.elements()), local = lanes(caps());
	check_head_dim(head_dim);
	Pipeline& p = kernels_.get(prompt_kernel(caps()), {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}});
	const ScorePromptPush push{.first = kv.first, .n_tokens = n_tokens, .n_rows = n_rows, .n_heads = n_heads, .n_kv_heads = n_kv_heads,
							   .t_cap = kv.k.shape[1], .stride = score.shape[1], .scale = score_scale(head_dim)};
	const double pairs = double(n_rows) * (kv.first + 0.5 * q.shape[0]);
	rec_.dispatch(p, push, {bind(score), bind(q), bind(kv.k), bind(kv.lse), bind(rows)}, {groups(n_tokens, local), n_kv_heads, 1},
				  {.label = "score_prompt", .bytes = 2.0 * n_tokens * n_kv_heads * head_dim + 4.0 * n_rows * n_heads * head_dim,
				   .flops = 2.0 * pairs * n_heads * head_dim});
}

void VulkanBackend::score_slots(View score, View q, View rows, View lse, const KvRead& f16) {
	check_score_slots(score, q, rows, lse, f16);
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_rows = uint32_t(rows.elements()), n_pages = f16.pages.shape[0];
	check_head_dim(head_dim);
	bool continues = false; // work items of different groups score different slots
	for (const AttendGroup& g : f16.groups) {
		Pipeline& p = kernels_.get(Kernel::score_slots, {{SPEC_LOCAL_X, lanes(caps())}, {SPEC_HEAD_DIM, head_dim}, {SPEC_PAGE, g.page}});
		const ScoreSlotsPush push{.first_work = g.first_work, .n_rows = n_rows, .n_heads = n_heads, .n_kv_heads = f16.n_kv_heads,
								  .stride = score.shape[1], .live_stride = f16.live.shape[0] > 1 ? n_pages * 4 : 0,
								  .scale = score_scale(head_dim)};
		const double tokens = double(g.n_pages ? g.n_pages : n_pages) * g.page;
		rec_.dispatch(p, push, {bind(score), bind(q), bind(g.k_codes), bind(lse), bind(rows), bind(f16.work), bind(f16.pages), bind(f16.live)},
					  {g.n_work, f16.n_kv_heads, 1},
					  {.label = "score_slots", .bytes = 2.0 * tokens * f16.n_kv_heads * head_dim,
					   .flops = 2.0 * tokens * n_rows * n_heads * head_dim, .continues = continues});
		continues = true;
	}
}

void VulkanBackend::channel_max(View out, View x) {
	check_channel_max(out, x);
	const uint32_t n_kv_heads = out.shape[0], head_dim = out.shape[1], local = lanes(caps());
	Pipeline& p = kernels_.get(Kernel::channel_max, {{SPEC_LOCAL_X, local}});
	const ChannelMaxPush push{.n_rows = x.shape[0], .n_heads = x.shape[1], .n_kv_heads = n_kv_heads, .head_dim = head_dim};
	rec_.dispatch(p, push, {bind(out), bind(x)}, {groups(n_kv_heads * head_dim, local), 1, 1},
				  {.label = "channel_max", .bytes = 4.0 * double(x.elements())});
}

void VulkanBackend::kv_balance(View out, View q_max, const PromptKv& k, uint32_t n) {
	check_kv_balance(out, q_max, k, n);
	const uint32_t n_kv_heads = k.k.shape[0], head_dim = k.k.shape[2];
	const KvBalancePush push{.n = n, .t_cap = k.k.shape[1], .head_dim = head_dim};
	rec_.dispatch(kernels_.get(Kernel::kv_balance, {}), push, {bind(out), bind(q_max), bind(k.k)}, {groups(head_dim / 2, 32), n_kv_heads, 1},
				  {.label = "kv_balance", .bytes = 2.0 * double(n) * n_kv_heads * head_dim});
}

void score_uses(const Caps& c, std::vector<KernelUse>& out) {
	for (const uint32_t d : {64u, 80u, 96u, 128u, 256u}) {
		out.push_back({prompt_kernel(c), {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, d}}, fmt::format("head_dim {}", d)});
		for (const uint32_t page : {32u, 64u, 128u})
			out.push_back({Kernel::score_slots, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, d}, {SPEC_PAGE, page}},
						   fmt::format("head_dim {}, pages of {}", d, page)});
	}
	out.push_back({Kernel::channel_max, {{SPEC_LOCAL_X, lanes(c)}}, ""});
	out.push_back({Kernel::kv_balance, {}, ""});
}

} // namespace kvrun::vk
