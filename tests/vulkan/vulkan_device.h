// A fresh Vulkan backend on the test's driver (the first of KVRUN_TEST_DEVICES), with access to its internals.
#pragma once
#include "backends/vulkan/vulkan_backend.h"
#include "tests/support/devices.h"
#include "tests/support/scoped_env.h"
#include "tests/support/skip.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>

namespace kvrun {

inline std::string test_driver() {
	const char* list = std::getenv("KVRUN_TEST_DEVICES");
	const std::string name = list && *list ? list : "lavapipe";
	return name.substr(0, name.find(','));
}

// select_test_device() of the test's driver; false, with the reason, if it is not installed.
inline bool select_test_driver() {
	try {
		select_test_device(test_driver());
		return true;
	} catch (const Error& e) {
		if (e.code != Code::NotFound) throw;
		skip(test_driver() + ": " + e.what());
		return false;
	}
}

class VulkanDevice {
 public:
	VulkanDevice() : check_("KVRUN_CHECK", "") { // a checked backend would hide the one to test
		try {
			backend_ = open_test_device(test_driver());
			vulkan_ = dynamic_cast<vk::VulkanBackend*>(backend_.get());
		} catch (const Error& e) {
			if (e.code != Code::NotFound) throw;
			skip(test_driver() + ": " + e.what());
		}
	}
	explicit operator bool() const { return vulkan_ != nullptr; }
	vk::VulkanBackend& operator*() { return *vulkan_; }
	vk::VulkanBackend* operator->() { return vulkan_; }

 private:
	ScopedEnv check_;
	std::unique_ptr<Backend> backend_;
	vk::VulkanBackend* vulkan_ = nullptr;
};

} // namespace kvrun
