// What the environment says about the device, for commands that are built on the C API.
#include "tools/api_device.h"
#include "tools/env.h"
#include <cstdlib>

namespace kvrun {

static const char* or_null(const std::string& s) { return s.empty() ? nullptr : s.c_str(); }

ApiDevice::ApiDevice(const std::string& device) {
	const BackendOptions o = options_from_environment();
	backend_ = o.backend, device_ = device.empty() ? o.device : device;
	cache_dir_ = o.cache_dir, probe_ = o.probe, validate_ = o.validate;
	dump_ = o.dump, shaders_ = o.shaders, test_caps_ = o.test_caps;
	options.backend = or_null(backend_), options.device = or_null(device_);
	options.cache_dir = or_null(cache_dir_), options.probe = or_null(probe_), options.validate = or_null(validate_);
	options.dump = or_null(dump_), options.shaders = or_null(shaders_), options.test_caps = or_null(test_caps_);
	options.check = o.check, options.poison = o.poison, options.submit_ms = o.submit_ms;
	options.set_driver_files = [](const char* files, void*) {
		setenv("VK_DRIVER_FILES", files, 1);
		setenv("VK_ICD_FILENAMES", files, 1); // its name for older loaders
	};
}

} // namespace kvrun
