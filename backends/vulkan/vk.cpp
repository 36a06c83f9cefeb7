// Vulkan's functions, loaded at run time.
#define VOLK_IMPLEMENTATION
#include "backends/vulkan/vk.h"
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
	std::string_view name(call); // the function is enough: arguments mean nothing to a reader of the message
	name = name.substr(0, name.find('('));
	if (const size_t dot = name.find_last_of(".>"); dot != name.npos) name = name.substr(dot + 1);
	if (memory)
		fail(Code::OutOfMemory, "{} returned {} ({}); give a smaller -c, a --kv with fewer bits, or a smaller model",
		     name, result_name(r), int(r));
	fail(Code::Device, "{} returned {} ({})", name, result_name(r), int(r));
}

bool load_loader() {
	static const bool loaded = volkInitialize() == VK_SUCCESS;
	return loaded;
}

} // namespace kvrun::vk
