// What tests must know of AddressSanitizer. KVRUN_TEST_ASAN is defined in programs that are built with it.
#pragma once
#if defined(__SANITIZE_ADDRESS__)
#define KVRUN_TEST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVRUN_TEST_ASAN
#endif
#endif
#ifdef KVRUN_TEST_ASAN
#include <dlfcn.h>
#endif

// Lavapipe forgets a little memory of each instance. Once it is unloaded, the leak checker cannot tell whose that was
// (leaks.supp).
inline void keep_driver_loaded() {
#ifdef KVRUN_TEST_ASAN
	dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE);
#endif
}
