// Device settings from the environment, for commands that are built on the C API.
#include "tools/api_device.h"
#include "tools/api_call.h"
#include "tools/env.h"

namespace kvrun {

ApiDevice::ApiDevice(const std::string& device, const std::string& split) : split_(split) {
	backend_ = env_text(Env::Backend), device_ = device.empty() ? env_text(Env::Device) : device;
	cache_dir_ = pipeline_cache_folder(), probe_ = probe_program(), validate_ = env_text(Env::Validate);
	dump_ = env_text(Env::Dump), shaders_ = env_text(Env::Shaders), test_caps_ = env_text(Env::TestCaps);
	options.backend = or_null(backend_), options.device = or_null(device_);
	options.split = or_null(split_);
	options.cache_dir = or_null(cache_dir_), options.probe = or_null(probe_), options.validate = or_null(validate_);
	options.dump = or_null(dump_), options.shaders = or_null(shaders_), options.test_caps = or_null(test_caps_);
	options.check = env_flag(Env::Check), options.poison = env_flag(Env::Poison);
	options.f32_matmul = f32_matmul();
	options.submit_ms = env_number(Env::SubmitMs, options.submit_ms);
	options.set_driver_files = [](const char* files, void*) { set_driver_files(files); };
}

kvrun_status set_host_memory(kvrun_engine* engine, uint64_t budget_bytes, const std::string& offload_dir) {
	kvrun_host_memory_options o = KVRUN_HOST_MEMORY_OPTIONS_INIT;
	o.budget_bytes = budget_bytes;
	o.offload_dir = or_null(offload_dir);
	return kvrun_engine_set_host_memory(engine, &o);
}

} // namespace kvrun
