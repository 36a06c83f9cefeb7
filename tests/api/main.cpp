// Tests of the C API.
#define DOCTEST_CONFIG_IMPLEMENT
#include "../support/sanitizer.h"
#include <doctest/doctest.h>
#ifdef KVRUN_TEST_ASAN
#include <dlfcn.h>
#endif

int main(int argc, char** argv) {
#ifdef KVRUN_TEST_ASAN
	// The driver forgets a little memory of each instance. Once it is unloaded, the leak checker cannot tell whose.
	dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE);
#endif
	return doctest::Context(argc, argv).run();
}
