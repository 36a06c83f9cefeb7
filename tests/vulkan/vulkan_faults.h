// Makes Vulkan calls of this process fail on purpose: the n-th call of one function or of all. Can also miscompile a
// shader.
#pragma once
#include "backends/vulkan/vk.h"
#include <cstdint>
#include <map>
#include <string>

namespace kvrun {

struct VulkanFaults {
	// Calls number first .. last (from 1) of `function` fail, or of all functions that can fail if it is empty. The
	// driver does not get these calls, except that waits still wait, so that nothing is destroyed while in use.
	std::string function;
	uint64_t first = 0, last = 0;
	VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	// The number (from 1) of the vkCreateShaderModule in which the driver exchanges additions and subtractions, and
	// replaces fma() by clamp(); 0: none.
	uint64_t miscompiled = 0;
	// Counts since reset().
	std::map<std::string, uint64_t> calls; // by function
	uint64_t all_calls = 0, failed = 0;
	std::string failed_in;   // function of the first failed call
	int64_t live_memory = 0; // current VkDeviceMemory objects; reset() does not change it

	void reset() {
		const int64_t live = live_memory;
		*this = VulkanFaults();
		live_memory = live;
	}
	void fail_calls(const std::string& f, uint64_t from, uint64_t to, VkResult r) {
		reset();
		function = f, first = from, last = to, result = r;
	}
};

// Installs the wrappers between kvrun and the loader, for every device that is opened from now on; returns the same
// object at each call. Throws Error if there is no loader.
VulkanFaults& vulkan_faults();

} // namespace kvrun
