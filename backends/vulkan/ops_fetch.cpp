// weigh, top_k, candidates, scatter, part_share and transfers on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "engine/core/round.h"
#include "shared/kv_page.h"
#include "shared/push.h"

namespace kvrun::vk {

void VulkanBackend::compute(const op::Weigh& o) {
	const auto& [q, lse, a] = o;
	if (a.q_rope) return weigh_latents(o);
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], share = n_heads / a.n_kv_heads;
	check_head_dim(head_dim);
	bool continues = false; // work items weigh different slots
	for (const WeighGroup& g : a.groups) {
		check_attend_format({g.k, {}}, head_dim);
		const WeighPush push{.first_work = g.first_work,
		                     .n_heads = n_heads,
		                     .n_kv_heads = a.n_kv_heads,
		                     .scale = score_scale(head_dim),
		                     .softcap = a.softcap};
		rec_.dispatch(pipeline(choose_weigh(caps(), g.k, head_dim, share, g.page, a.softcap > 0 ? ATTEND_SOFTCAP : 0)),
		              push,
		              {bind(a.weight), bind(q), bind(g.k_codes), bind(lse), bind(a.work), bind(a.tables),
		               bind(g.k_params), bind(a.balance)},
		              {g.n_work, a.n_kv_heads, 1},
		              {.label = "weigh",
		               .bytes = 4.0 * g.n_pages * kv_code_words(a.n_kv_heads, head_dim, g.k.bits, g.page),
		               .flops = 4.0 * g.n_pages * g.page * n_heads * head_dim,
		               .continues = continues});
		continues = true;
	}
}

void VulkanBackend::compute(const op::TopK& o) {
	const auto& [picks, weight, work] = o;
	rec_.dispatch(pipeline(choose_top_k(caps())), TopPush{}, {bind(picks), bind(weight), bind(work)},
	              {work.shape[0], 1, 1}, {.label = "top_k", .bytes = 24.0 * double(weight.elements())});
}

void VulkanBackend::compute(const op::Candidates& o) {
	const auto& [list, block_max, x, k] = o;
	const uint32_t rows = x.shape[0], blocks = block_max.shape[1];
	const CandidatesPush push{.n = x.shape[1], .blocks = blocks, .k = k};
	const Choice maxima = choose_block_max();
	rec_.dispatch(pipeline(maxima), push, {bind(block_max), bind(x)},
	              {ceil_div(blocks, maxima.spec[0].value / 32), rows, 1},
	              {.label = "candidates", .bytes = 4.0 * double(x.elements())});
	rec_.dispatch(pipeline(choose_candidates(caps())), push, {bind(list), bind(block_max), bind(x)}, {rows, 1, 1},
	              {.label = "candidates", .bytes = 20.0 * double(block_max.elements())});
}

void VulkanBackend::compute(const op::Scatter& o) {
	const auto& [words, list] = o;
	const Choice how = choose_scatter(caps());
	rec_.dispatch(pipeline(how), ScatterPush{.n = list.shape[0]}, {bind(words), bind(list)},
	              {ceil_div(list.shape[0], how.spec[0].value), 1, 1},
	              {.label = "scatter", .bytes = 12.0 * list.shape[0]});
}

void VulkanBackend::compute(const op::PartShare& o) {
	const auto& [out, parts, work] = o;
	const uint32_t n = out.shape[0], n_heads = parts.shape[1];
	rec_.dispatch(pipeline(choose_part_share(caps())),
	              PartSharePush{.n_heads = n_heads, .head_dim = parts.shape[2] - 2},
	              {bind(out), bind(parts), bind(work)}, {n_heads, n, 1},
	              {.label = "part_share", .bytes = 8.0 * parts.shape[0] * n_heads});
}

std::span<std::byte> VulkanBackend::host_bytes(const Buffer& b) {
	const BufferRec& r = mem_.at(b.id());
	KV_ASSERT(r.mapped && r.coherent);
	return {r.mapped, b.bytes()};
}

uint64_t VulkanBackend::transfer(View dst, View src) {
	check_and_count(dst, src);
	return rec_.transfer(bind(dst), bind(src));
}

bool VulkanBackend::arrive(uint64_t transfer) {
	rec_.arrive(transfer);
	return true;
}

uint64_t VulkanBackend::mark() { return rec_.mark(); }

void VulkanBackend::wait_for(uint64_t mark) {
	rec_.wait_until(mark);
	dev_.instance().messages().take();
}

} // namespace kvrun::vk
