// Statistics of a pipeline from the driver's compiler: registers, spills, code size.
#pragma once
#include "backends/vulkan/device.h"
#include "backends/vulkan/open_vulkan.h"

namespace kvrun::vk {

// Adds the statistics of a pipeline made with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR on a device that has
// VK_KHR_pipeline_executable_properties enabled. A name that kvrun does not know is a warning.
void read_statistics(Device&, VkPipeline, KernelReport&);
// The assembly that the compiler generated, for a pipeline created with
// VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR; empty where the driver has no text of that kind.
std::string read_assembly(Device&, VkPipeline);

} // namespace kvrun::vk
