// Tries the installed Vulkan drivers in helper processes, so that one that crashes or hangs is a refusal, not the end.
#pragma once
#include "backends/registry.h"
#include <string>
#include <vector>

namespace kvrun::vk {

struct BadDriver {
	std::string file; // ICD file
	std::string why;  // "crashed with signal 6 (SIGABRT): radv: Unknown family"
};
struct Drivers {
	std::vector<BadDriver> bad;
	std::string good; // ICD files, with colons between; all the others
};
// The drivers that must not be loaded here: manifests that are none, drivers known as bad, and those that exit, crash
// or do not list their devices when BackendOptions::probe tries them, all at once. Nothing of this process changes but
// children it has for a moment. Tried once per process and environment.
Drivers probe_drivers(const BackendOptions&);

} // namespace kvrun::vk
