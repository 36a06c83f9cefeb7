// Tries the installed Vulkan drivers in a child process, so that one that crashes is a refusal, not the end.
#pragma once
#include <string>
#include <vector>

namespace kvrun::vk {

struct BadDriver {
	std::string file; // ICD file
	std::string why;  // "crashed with signal 6 (SIGABRT): radv: Unknown family"
};
// Drivers that crash or hang when devices are listed. They are also excluded from the loader's later searches, by
// VK_DRIVER_FILES of this process. Tried once per environment, and not while Vulkan is in use in this process.
std::vector<BadDriver> probe_drivers();

} // namespace kvrun::vk
