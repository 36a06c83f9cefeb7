// doctest main of the device tests: prints which devices are used and why others are not. Exit code 77: none can be
// used.
#define DOCTEST_CONFIG_IMPLEMENT
#include "engine/core/error.h"
#include "tests/support/devices.h"
#include "tests/support/sanitizer.h"
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
	keep_driver_loaded();
	if (std::getenv("KVRUN_LOG")) kvrun::log_to_stderr();
	doctest::Context context(argc, argv);
	context.setOption("duration", true); // in the log of ctest, Testing/Temporary/LastTest.log
	size_t usable = 0;
	kvrun::keep_test_device("swiftshader");
	try {
		for (const kvrun::TestDevice& d : kvrun::test_devices()) {
			if (!d.backend) {
				std::printf("skipped: %s (%s)\n", d.name.c_str(), d.skipped.c_str());
				continue;
			}
			const kvrun::DeviceInfo info = d.backend->info();
			std::printf("device: %s: %s, %s\n", d.name.c_str(), info.name.c_str(), info.driver.c_str());
			++usable;
		}
	} catch (const kvrun::Error& e) {
		std::fprintf(stderr, "error: %s\n", e.what());
		return 2;
	}
	std::fflush(stdout);
	if (usable == 0) return 77;
	const int rc = context.run();
	try {
		kvrun::close_test_devices(); // a validation message at the end also fails the run
	} catch (const kvrun::Error& e) {
		std::fprintf(stderr, "error: %s\n", e.what());
		return 1;
	}
	return rc;
}
