// attend and attend_prompt on Vulkan.
#include "backends/vulkan/vulkan_backend.h"

namespace kvrun::vk {

void VulkanBackend::attend(View, View, const KvRead&) { fail(Code::Unsupported, "attend: not on Vulkan"); }
void VulkanBackend::attend_prompt(View, View, const PromptKv&, const KvRead*) { fail(Code::Unsupported, "attend_prompt: not on Vulkan"); }
void attend_uses(const Caps&, std::vector<KernelUse>&) {}

} // namespace kvrun::vk
