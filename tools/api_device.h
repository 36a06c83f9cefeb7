// Device settings from the environment, for commands that are built on the C API.
#pragma once
#include "engine/kvrun.h"
#include <string>

namespace kvrun {

// Device options with the strings that they point to.
struct ApiDevice {
	// Reads the environment. device: --device; if empty, the environment's; split: --split. Throws Error{Invalid}
	// naming the variable.
	explicit ApiDevice(const std::string& device, const std::string& split = "");
	ApiDevice(const ApiDevice&) = delete;
	kvrun_device_options options = KVRUN_DEVICE_OPTIONS_INIT;

 private:
	std::string backend_, device_, split_, cache_dir_, probe_, validate_, dump_, shaders_, test_caps_;
};

// Applies --host-budget and --offload-dir.
kvrun_status set_host_memory(kvrun_engine*, uint64_t budget_bytes, const std::string& offload_dir);

} // namespace kvrun
