// index_score, index_pick, index_live on Vulkan: which tokens a row attends to.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"

namespace kvrun::vk {

void VulkanBackend::compute(const op::IndexScore& o) {
	const auto& [score, q, weights, keys, work, pool] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], dim = q.shape[2], capacity = score.shape[1];
	const uint32_t n_items = work.shape[0], across = std::min(n_items, kMostRows);
	const IndexChoice how = choose_index_score(caps(), dim, weights ? INDEX_WEIGHTS : pool ? INDEX_POOL : 0);
	const IndexScorePush push{
	    .n_heads = n_heads, .capacity = capacity, .n_items = n_items, .item_stride = across, .pool = pool};
	rec_.dispatch(pipeline(how), push, {bind(score), bind(q), bind(weights), bind(keys), bind(work)},
	              {across, ceil_div(T, how.rows), ceil_div(n_items, kMostRows)},
	              {.label = "index_score",
	               .bytes = o.bytes(),
	               .flops = 2.0 * double(q.elements()) * capacity * std::max(pool, 1u)});
}

void VulkanBackend::compute(const op::IndexPick& o) {
	const auto& [bits, score, seen, block, most, local] = o;
	const IndexPickPush push{
	    .n_words = bits.shape[1], .capacity = score.shape[1], .block = block, .most = most, .local = local};
	rec_.dispatch(pipeline(choose_index_pick(caps())), push, {bind(bits), bind(score), bind(seen)},
	              {score.shape[0], 1, 1},
	              {.label = "index_pick", .bytes = 24.0 * double(score.elements()) + double(bits.bytes())});
}

void VulkanBackend::compute(const op::IndexLive& o) {
	const auto& [tables, bits, work] = o;
	rec_.dispatch(pipeline(choose_index_live()), IndexLivePush{.n_words = bits.shape[1]},
	              {bind(tables), bind(bits), bind(work)}, {work.shape[0], kLiveGroups, 1},
	              {.label = "index_live", .bytes = o.bytes()});
}

} // namespace kvrun::vk
