// Vulkan's functions, loaded at run time; VK_TRY turns every failing call into an Error that names call and result.
#pragma once
#include "engine/core/error.h"
#include <volk.h>

namespace kvrun::vk {

const char* result_name(VkResult);
// Throws Error{OutOfMemory} for memory results, Error{Device} for all others.
[[noreturn]] void fail_call(VkResult, const char* call);
// A Vulkan struct with sType and pNext set and everything else zero.
template <class T> T make(VkStructureType type, void* next = nullptr) {
	T t{};
	t.sType = type;
	t.pNext = next;
	return t;
}
// Loads libvulkan once per process; false when there is none.
bool load_loader();

} // namespace kvrun::vk

// Negative results throw; positive ones (VK_INCOMPLETE, VK_TIMEOUT) are for the caller, who calls directly.
#define VK_TRY(call)                                                                                                   \
	do {                                                                                                               \
		const VkResult vk_result_ = (call);                                                                            \
		if (vk_result_ < 0) ::kvrun::vk::fail_call(vk_result_, #call);                                                 \
	} while (0)
