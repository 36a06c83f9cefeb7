// kv_load on Vulkan: keys and values on their way out of f16 pages.
#include "backends/check.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include "shared/spec.h"

namespace kvrun::vk {
namespace {

constexpr uint32_t kLocal = 128; // every device has it

} // namespace

void VulkanBackend::kv_load(const PromptKv& dst, uint32_t n, const KvDst& src) {
	check_kv_store(dst, n, src);
	const uint32_t n_kv_heads = dst.k.shape[0], head_dim = dst.k.shape[2];
	Pipeline& p = kernels_.get(Kernel::kv_load, {{SPEC_LOCAL_X, kLocal}});
	const KvStorePush push{.n_kv_heads = n_kv_heads,
	                       .head_words = head_dim / 2,
	                       .t_cap = dst.k.shape[1],
	                       .first = dst.first,
	                       .n = n,
	                       .k_word_stride = src.k_word_stride};
	rec_.dispatch(p, push, {bind(dst.k), bind(dst.v), bind(src.k), bind(src.v), bind(src.at)},
	              {uint32_t((uint64_t(n) * push.head_words + kLocal - 1) / kLocal), n_kv_heads, 2},
	              {.label = "kv_load", .bytes = 8.0 * n * n_kv_heads * head_dim});
}

void kv_move_uses(const Caps&, std::vector<KernelUse>& out) {
	out.push_back({Kernel::kv_load, {{SPEC_LOCAL_X, kLocal}}, ""});
}

} // namespace kvrun::vk
