// What open.cpp asks of the Vulkan backend, without Vulkan's headers.
#pragma once
#include "backends/backend.h"

namespace kvrun::vk {

// All Vulkan devices, best first, refused ones with the reason; a missing loader or driver is one refused report.
// Drivers are first tried in a child process: one that crashes is a refusal, not the end of this process.
std::vector<DeviceReport> list_vulkan();
// Opens entry `index` of list_vulkan(). Throws Error{Device} with the reason when it is refused.
std::unique_ptr<Backend> open_vulkan(size_t index);

} // namespace kvrun::vk
