// Backend options from the environment.
#include "engine/core/error.h"
#include "tools/env.h"

namespace kvrun {

BackendOptions options_from_environment() {
	BackendOptions o;
	o.device = env_text(Env::Device);
	o.backend = env_text(Env::Backend);
	std::string names;
	bool known = o.backend.empty();
	for (const BackendRow& b : backend_table()) {
		known |= o.backend == b.name;
		names += fmt::format("{}{}", names.empty() ? "" : " or ", b.name);
	}
	if (!known) fail(Code::Invalid, "KVRUN_BACKEND is '{}', expected {}", o.backend, names);
	o.check = env_flag(Env::Check);
	o.dump = env_text(Env::Dump);
	o.validate = env_text(Env::Validate);
	o.poison = env_flag(Env::Poison);
	o.f32_matmul = f32_matmul();
	o.shaders = env_text(Env::Shaders);
	o.test_caps = env_text(Env::TestCaps);
	o.submit_ms = env_number(Env::SubmitMs, o.submit_ms);
	o.cache_dir = pipeline_cache_folder();
	o.probe = probe_program();
	o.set_driver_files = set_driver_files;
	return o;
}

} // namespace kvrun
