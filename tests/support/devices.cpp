// Opens the devices of the device tests by their short names.
#include "tests/support/devices.h"
#include "tests/support/kept_devices.h"
#ifdef KVRUN_TEST_CUDA_HOST
#include "tests/cuda/host_runtime.h"
#endif
#include <cstdlib>
#include <filesystem>

namespace kvrun {
namespace {

namespace fs = std::filesystem;

// The ICD file of a software driver; empty when the driver is not installed.
std::string icd_file(const std::string& name) {
	if (name == "swiftshader") {
		const char* file = "/usr/lib/chromium/vk_swiftshader_icd.json"; // package chromium
		return fs::exists(file) ? file : "";
	}
	if (name == "lavapipe26") { // set by tests/support/vendor_drivers.sh, with the C library that it needs
		const char* folder = std::getenv("KVRUN_TEST_VENDOR_DRIVERS");
		return folder && *folder ? std::string(folder) + "/icd/lvp_icd.json" : "";
	}
	std::error_code error; // package mesa-vulkan-drivers names the file after the architecture
	for (const auto& entry : fs::directory_iterator("/usr/share/vulkan/icd.d", error))
		if (entry.path().filename().string().starts_with("lvp_icd")) return entry.path().string();
	return "";
}

// Adds the backend cuda-host, which runs the CUDA sources on the host.
void add_cuda_host_once() {
#ifdef KVRUN_TEST_CUDA_HOST
	static const bool added = (cuda::add_cuda_host(), true);
	(void)added;
#else
	fail(Code::NotFound, "the tests were built without Boost.Context (package libboost-context-dev)");
#endif
}

// The best device of the system's drivers. Lists of devices, as in --device A,B, need its name, or a part of it without
// a comma: "llvmpipe (LLVM 15.0.6" of "llvmpipe (LLVM 15.0.6, 256 bits)".
const std::string& best_device() {
	static const std::string name = [] {
		BackendOptions options = options_from_environment();
		options.device = "";
		const std::string all = open_backend(options)->info().name;
		return all.substr(0, all.find(','));
	}();
	return name;
}

std::vector<TestDevice> open_all() {
	const char* list = std::getenv("KVRUN_TEST_DEVICES");
	std::vector<TestDevice> r;
	std::string name;
	for (const char c : std::string(list && *list ? list : "cpu") + ",") {
		if (c != ',') {
			name += c;
			continue;
		}
		if (name.empty()) continue;
		TestDevice d{name, nullptr, ""};
		try {
			d.backend = open_test_device(name);
		} catch (const Error& e) {
			if (e.code == Code::Invalid) throw;
			d.skipped = e.what();
		}
		r.push_back(std::move(d));
		name.clear();
	}
	return r;
}

std::string& kept_name() {
	static std::string name;
	return name;
}

std::vector<TestDevice>& storage() {
	static std::vector<TestDevice> devices = open_all();
	return devices;
}

} // namespace

BackendOptions select_test_device(const std::string& name) {
	BackendOptions options = options_from_environment();
	options.device = name == "cpu" || name == "cuda" || name == "cuda-host" ? name
	                 : name == "gpu" || name == "vulkan"                    ? best_device()
	                                                                        : "0";
	if (name == "cuda-host") add_cuda_host_once();
	if (options.device != "0") return options;
	if (name != "lavapipe" && name != "lavapipe26" && name != "swiftshader")
		fail(Code::Invalid,
		     "KVRUN_TEST_DEVICES names '{}', expected cpu, lavapipe, lavapipe26, swiftshader, cuda-host, cuda, gpu or "
		     "vulkan",
		     name);
	const std::string icd = icd_file(name);
	if (icd.empty() && name == "lavapipe26") fail(Code::NotFound, "start the program by {}PROGRAM", starter_of(name));
	if (icd.empty()) fail(Code::NotFound, "no ICD file of {}", name);
	setenv("VK_DRIVER_FILES", icd.c_str(), 1);  // read by the loader whenever an instance is made
	setenv("VK_ICD_FILENAMES", icd.c_str(), 1); // the variable's name for older loaders
	// vendor-drivers/run turns the cache off, which takes minutes
	if (name == "lavapipe26") setenv("MESA_SHADER_CACHE_DISABLE", "false", 1);
	setenv("XDG_RUNTIME_DIR", fs::temp_directory_path().string().c_str(), 0); // the drivers print a warning without it
	return name == kept_name() ? kept_device(options) : options;
}

void keep_test_device(const std::string& name) { kept_name() = name; }

std::unique_ptr<Backend> open_test_device(const std::string& name) {
	std::unique_ptr<Backend> b = open_backend(select_test_device(name));
	if (name == "gpu" && b->info().is_cpu) fail(Code::NotFound, "no GPU: the best device is {}", b->info().name);
	return b;
}

std::string starter_of(const std::string& name) {
	return name == "lavapipe26" ? "tests/support/vendor_drivers.sh build/vendor lavapipe " : "";
}

std::vector<TestDevice>& test_devices() { return storage(); }
void close_test_devices() {
	storage().clear();
	close_kept_devices();
}

} // namespace kvrun
