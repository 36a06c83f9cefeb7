// Vulkan's functions, loaded at run time; VK_TRY turns every failing call into an Error that names call and result.
#pragma once
#include "backends/vulkan/volk_names.inc" // made by backends/CMakeLists.txt; before volk's own header
#include "engine/core/error.h"
#include <string>
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
// Loads libvulkan, once per process; returns "" on success, else why it cannot be loaded.
std::string load_loader();
// True after a driver has thrown through the loader, which is C and then still holds its lock: it must not be called.
bool loader_is_stuck();
void set_loader_stuck();
// A call of the loader during which drivers load or initialise. Throws Error{OutOfMemory} if they throw it.
template <class F> VkResult call_loader(F f) {
	try {
		return f();
	} catch (...) {
		set_loader_stuck();
		fail(Code::OutOfMemory, "a Vulkan driver gave up in the middle of a call, for want of memory; start again with "
		                        "more of it");
	}
}

} // namespace kvrun::vk

// Negative results throw. For positive ones (VK_INCOMPLETE, VK_TIMEOUT) the caller must check the result itself.
#define VK_TRY(call)                                                                                                   \
	do {                                                                                                               \
		const VkResult vk_result_ = (call);                                                                            \
		if (vk_result_ < 0) ::kvrun::vk::fail_call(vk_result_, #call);                                                 \
	} while (0)
