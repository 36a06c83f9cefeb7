// score_prompt, score_slots, channel_max, kv_balance on Vulkan: what saliency and channel balancing need to know.
#include "backends/check.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>
#include <cmath>

namespace kvrun::vk {
namespace {

constexpr uint32_t kQuadLanes = 8; // lanes of score_*_lanes.comp, and its queries at a time

uint32_t lanes(const Caps& c) { return c.is_cpu ? c.subgroup : 64; }
// The kernels for drivers on a processor take one subgroup of at least 8 lanes.
bool texels(const Caps& c) { return c.texel_range && c.subgroup >= kQuadLanes; }
struct Choice {
	Kernel kernel;
	std::vector<SpecValue> spec;
	uint32_t tokens; // of a workgroup of score_prompt
};
// page: of score_slots; 0: score_prompt. One row, or as many at a time as there is room for beside the heads.
Choice choose(const Caps& c, uint32_t head_dim, uint32_t share, uint32_t n_rows, uint32_t page) {
	Choice x{page ? Kernel::score_slots : Kernel::score_prompt,
	         {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, head_dim}},
	         lanes(c)};
	if (texels(c)) {
		const uint32_t heads = std::min(share, kQuadLanes), rows = n_rows == 1 ? 1 : kQuadLanes / heads;
		x.kernel = page ? Kernel::score_slots_lanes : Kernel::score_prompt_lanes;
		x.spec = {{SPEC_LOCAL_X, kQuadLanes}, {SPEC_HEAD_DIM, head_dim}, {SPEC_HEADS, heads}, {SPEC_ROWS, rows}};
		x.tokens = kQuadLanes * 4;
	}
	if (page) x.spec.push_back({SPEC_PAGE, page});
	return x;
}
uint32_t groups(uint32_t n, uint32_t each) { return (n + each - 1) / each; }
float score_scale(uint32_t head_dim) { return 1 / std::sqrt(float(head_dim)); }

void check_head_dim(uint32_t head_dim) {
	if (head_dim % 8 || head_dim > 256)
		fail(Code::Unsupported, "head_dim {}: attention on Vulkan needs a multiple of 8, at most 256; use --device cpu",
		     head_dim);
}

} // namespace

void VulkanBackend::score_prompt(View score, View q, View rows, const PromptKv& kv) {
	check_score_prompt(score, q, rows, kv);
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = kv.k.shape[0],
	               n_tokens = kv.first + q.shape[0];
	const uint32_t n_rows = uint32_t(rows.elements());
	check_head_dim(head_dim);
	const Choice choice = choose(caps(), head_dim, n_heads / n_kv_heads, n_rows, 0);
	Pipeline& p = kernels_.get(choice.kernel, choice.spec);
	const ScorePromptPush push{.first = kv.first,
	                           .n_tokens = n_tokens,
	                           .n_rows = n_rows,
	                           .n_heads = n_heads,
	                           .n_kv_heads = n_kv_heads,
	                           .t_cap = kv.k.shape[1],
	                           .stride = score.shape[1],
	                           .scale = score_scale(head_dim)};
	const double pairs = double(n_rows) * (kv.first + 0.5 * q.shape[0]);
	rec_.dispatch(p, push, {bind(score), bind(q), bind(kv.k), bind(kv.lse), bind(rows)},
	              {groups(n_tokens, choice.tokens), n_kv_heads, 1},
	              {.label = "score_prompt",
	               .bytes = 2.0 * n_tokens * n_kv_heads * head_dim + 4.0 * n_rows * n_heads * head_dim,
	               .flops = 2.0 * pairs * n_heads * head_dim});
}

void VulkanBackend::score_slots(View score, View q, View rows, View lse, const KvRead& f16) {
	check_score_slots(score, q, rows, lse, f16);
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_rows = uint32_t(rows.elements()),
	               n_pages = f16.pages.shape[0];
	check_head_dim(head_dim);
	bool continues = false; // work items of different groups score different slots
	for (const AttendGroup& g : f16.groups) {
		const Choice choice = choose(caps(), head_dim, n_heads / f16.n_kv_heads, n_rows, g.page);
		Pipeline& p = kernels_.get(choice.kernel, choice.spec);
		const ScoreSlotsPush push{.first_work = g.first_work,
		                          .n_rows = n_rows,
		                          .n_heads = n_heads,
		                          .n_kv_heads = f16.n_kv_heads,
		                          .stride = score.shape[1],
		                          .live_stride = f16.live.shape[0] > 1 ? n_pages * 4 : 0,
		                          .scale = score_scale(head_dim)};
		const double tokens = double(g.n_pages ? g.n_pages : n_pages) * g.page;
		rec_.dispatch(p, push,
		              {bind(score), bind(q), bind(g.k_codes), bind(lse), bind(rows), bind(f16.work), bind(f16.pages),
		               bind(f16.live)},
		              {g.n_work, f16.n_kv_heads, 1},
		              {.label = "score_slots",
		               .bytes = 2.0 * tokens * f16.n_kv_heads * head_dim,
		               .flops = 2.0 * tokens * n_rows * n_heads * head_dim,
		               .continues = continues});
		continues = true;
	}
}

void VulkanBackend::channel_max(View out, View x) {
	check_channel_max(out, x);
	const uint32_t n_kv_heads = out.shape[0], head_dim = out.shape[1], local = lanes(caps());
	Pipeline& p = kernels_.get(Kernel::channel_max, {{SPEC_LOCAL_X, local}});
	const ChannelMaxPush push{
	    .n_rows = x.shape[0], .n_heads = x.shape[1], .n_kv_heads = n_kv_heads, .head_dim = head_dim};
	rec_.dispatch(p, push, {bind(out), bind(x)}, {groups(n_kv_heads * head_dim, local), 1, 1},
	              {.label = "channel_max", .bytes = 4.0 * double(x.elements())});
}

void VulkanBackend::kv_balance(View out, View q_max, const PromptKv& k, uint32_t n) {
	check_kv_balance(out, q_max, k, n);
	const uint32_t n_kv_heads = k.k.shape[0], head_dim = k.k.shape[2];
	const KvBalancePush push{.n = n, .t_cap = k.k.shape[1], .head_dim = head_dim};
	rec_.dispatch(kernels_.get(Kernel::kv_balance, {}), push, {bind(out), bind(q_max), bind(k.k)},
	              {groups(head_dim / 2, 32), n_kv_heads, 1},
	              {.label = "kv_balance", .bytes = 2.0 * double(n) * n_kv_heads * head_dim});
}

void score_uses(const Caps& c, std::vector<KernelUse>& out) {
	const auto use = [&](uint32_t d, uint32_t share, uint32_t n_rows, uint32_t page) {
		const Choice x = choose(c, d, share, n_rows, page);
		std::string what = fmt::format("head_dim {}", d);
		if (texels(c)) what += fmt::format(", {} heads, {}", share, n_rows == 1 ? "a row" : "rows");
		if (page) what += fmt::format(", pages of {}", page);
		out.push_back({x.kernel, x.spec, what});
	};
	for (const uint32_t d : {64u, 80u, 96u, 128u, 256u})
		for (const uint32_t share : texels(c) ? std::vector<uint32_t>{1, 4, 8} : std::vector<uint32_t>{1}) {
			use(d, share, kQuadLanes, 0);
			for (const uint32_t page : {32u, 64u, 128u}) use(d, share, 1, page);
		}
	out.push_back({Kernel::channel_max, {{SPEC_LOCAL_X, lanes(c)}}, ""});
	out.push_back({Kernel::kv_balance, {}, ""});
}

} // namespace kvrun::vk
