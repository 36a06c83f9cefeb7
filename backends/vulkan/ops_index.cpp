// index_score, index_pick, index_live.
#include "backends/vulkan/vulkan_backend.h"

namespace kvrun::vk {

void VulkanBackend::compute(const op::IndexScore&) { fail(Code::Unsupported, "index_score"); }
void VulkanBackend::compute(const op::IndexPick&) { fail(Code::Unsupported, "index_pick"); }
void VulkanBackend::compute(const op::IndexLive&) { fail(Code::Unsupported, "index_live"); }

} // namespace kvrun::vk
