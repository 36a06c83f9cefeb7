// A Vulkan driver that ends the process as soon as the loader calls it, and says why.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) void* vk_icdGetInstanceProcAddr(void*, const char*) {
	std::fputs("crashing_driver: no chip that this driver knows\n", stderr);
	std::abort();
}
extern "C" __attribute__((visibility("default"))) int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t*) {
	return 0; // any version
}
