// Tries the installed Vulkan drivers in helper processes, so that one that crashes or hangs is only refused.
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
	std::string good; // all other ICD files, separated by colons
};
// The drivers that must not be loaded in this process: invalid manifests, drivers known as bad, and those that exit,
// crash or do not list their devices when BackendOptions::probe tries them, all in parallel. This process does not
// change, except for short-lived children. Drivers are tried once per process and environment.
Drivers probe_drivers(const BackendOptions&);

} // namespace kvrun::vk
