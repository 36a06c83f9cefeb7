// The devices of the device tests: KVRUN_TEST_DEVICES, a list of cpu, lavapipe, lavapipe26, swiftshader, cuda-host,
// cuda, gpu, vulkan; default cpu. gpu is the best of the system's real GPUs, vulkan the best Vulkan device, which may
// be a software driver. cuda-host runs the CUDA sources on the host (tests/cuda). lavapipe26 is Mesa 26.1 from
// ../shared/vendor; then vendor_drivers.sh must start the program.
#pragma once
#include "tools/env.h"
#include <memory>
#include <string>
#include <vector>

namespace kvrun {

struct TestDevice {
	std::string name;                 // as in KVRUN_TEST_DEVICES
	std::unique_ptr<Backend> backend; // null when it cannot be used
	std::string skipped;              // the reason; empty if it can be used
};
// Opened on the first call, one after the other, and kept until close_test_devices().
std::vector<TestDevice>& test_devices();
void close_test_devices();
// This device stays open until then; whoever opens it again with the same options gets the open one (kept_devices.h).
void keep_test_device(const std::string& name);

// The words before the test program's name on a command line for this device; empty for most.
std::string starter_of(const std::string& name);
// Makes the Vulkan loader find only this driver. Returns the options that open the device, with the settings of the
// environment. Throws Error if it is not installed.
BackendOptions select_test_device(const std::string& name);
// A fresh backend on the same driver; throws Error when it cannot be opened.
std::unique_ptr<Backend> open_test_device(const std::string& name);

} // namespace kvrun
