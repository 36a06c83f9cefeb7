// Vulkan's functions, loaded at run time.
#define VOLK_IMPLEMENTATION
#include "backends/vulkan/vk.h"
#include "engine/core/system/machine.h"
#include <atomic>
#include <mutex>
#include <string_view>

namespace kvrun::vk {

const char* result_name(VkResult r) {
	switch (r) {
#define NAME(x)                                                                                                        \
	case x: return #x
		NAME(VK_SUCCESS);
		NAME(VK_NOT_READY);
		NAME(VK_TIMEOUT);
		NAME(VK_INCOMPLETE);
		NAME(VK_ERROR_OUT_OF_HOST_MEMORY);
		NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY);
		NAME(VK_ERROR_INITIALIZATION_FAILED);
		NAME(VK_ERROR_DEVICE_LOST);
		NAME(VK_ERROR_MEMORY_MAP_FAILED);
		NAME(VK_ERROR_LAYER_NOT_PRESENT);
		NAME(VK_ERROR_EXTENSION_NOT_PRESENT);
		NAME(VK_ERROR_FEATURE_NOT_PRESENT);
		NAME(VK_ERROR_INCOMPATIBLE_DRIVER);
		NAME(VK_ERROR_TOO_MANY_OBJECTS);
		NAME(VK_ERROR_FRAGMENTED_POOL);
		NAME(VK_ERROR_OUT_OF_POOL_MEMORY);
		NAME(VK_ERROR_FRAGMENTATION);
		NAME(VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS);
		NAME(VK_ERROR_UNKNOWN);
#undef NAME
	default: return "an unknown VkResult";
	}
}

void fail_call(VkResult r, const char* call) {
	const bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
	std::string_view name(call); // only the function's name: its arguments do not help the reader of the message
	name = name.substr(0, name.find('('));
	if (const size_t dot = name.find_last_of(".>"); dot != name.npos) name = name.substr(dot + 1);
	if (memory)
		fail(Code::OutOfMemory, "{} returned {} ({}); give a smaller -c, a --kv with fewer bits, or a smaller model",
		     name, result_name(r), int(r));
	fail(Code::Device, "{} returned {} ({})", name, result_name(r), int(r));
}

std::string load_loader() {
	static std::mutex mutex;
	static bool loaded = false; // a failure for lack of memory or descriptors may be temporary
	std::lock_guard lock(mutex);
	if (loaded || volkInitialize() == VK_SUCCESS) return loaded = true, "";
	for (const char* name : {"libvulkan.so.1", "libvulkan.so"}) {
		bool missing;
		const std::string why = sys::load_problem(name, missing);
		// the loader exists, so the error has another reason
		if (!why.empty() && !missing) return fmt::format("the Vulkan loader: {}", why);
	}
#ifdef _WIN32
	return "no Vulkan loader (vulkan-1.dll); install the driver of the GPU's vendor, which brings it";
#endif
	return "no Vulkan loader (libvulkan.so.1); install package libvulkan1, and a driver: mesa-vulkan-drivers or the "
	       "GPU "
	       "vendor's";
}

namespace {
std::atomic<bool> stuck{false};
}
bool loader_is_stuck() { return stuck; }
void set_loader_stuck() { stuck = true; }

} // namespace kvrun::vk
