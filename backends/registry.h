// The list of backends, the devices they find, and opening a device.
#pragma once
#include "backends/backend.h"
#include "backends/device_tuning.h"
#include "backends/tolerance.h"
#include <functional>

namespace kvrun {

struct BackendOptions {
	std::string device;   // empty: best (discrete, integrated, virtual; a CPU device only if there is nothing else), an
	                      // index into list_devices(), part of a device name, the name of a backend, or BACKEND:INDEX
	std::string split;    // of several devices: open_devices()
	std::string backend;  // use devices of this backend only; empty: all
	bool check = false;   // also run every op on the cpu backend and stop at the first difference
	OpObserver compared;  // with `check`: gets every comparison; a difference then does not stop the run
	std::string dump;     // folder[:op[:layer]]: write inputs and outputs of ops as .npy
	std::string validate; // Vulkan validation layer: 1, sync, gpu; any message fails the run; empty or 0: off
	bool poison = false;  // fill new device memory with NaN, so that reads of unwritten memory show
	bool f32_matmul = false; // also where the device has DeviceInfo::half_matmul, int8_attend or int8_matmul
	std::string shaders;     // folder with .spv files that replace the embedded ones
	std::string test_caps;   // clamps device limits, for tests: workgroup=128,shared=16384,...
	double submit_ms = 100;  // target time of one submission to the device
	std::string cache_dir;   // folder of the pipeline cache, of test results of drivers and of measured choices; empty:
	                         // none, and no device is tested at its first use
	bool tuned = true;       // measured choices of the cache folder are used
	std::string probe;       // program that tries Vulkan drivers before they are loaded here, kvrun-probe; empty: none
	double probe_seconds = 60; // time limit for a driver to list its devices; many GPUs take longer
	bool transfers = true;     // sessions may fetch from host memory, or prompts copy weights from there: a queue for
	                           // copies is created where there is one
	// DeviceReport::build of devices whose matrices are not used because they failed the self-test.
	std::vector<std::string> no_matrices;
	// Called if drivers must be left out: sets VK_DRIVER_FILES to these files. A library must not do so itself, because
	// other threads may read the environment. Empty: Vulkan is not used while a bad driver is installed.
	std::function<void(const std::string&)> set_driver_files;
};

struct DeviceReport {    // one candidate, usable or not
	std::string backend; // "vulkan", "cpu", "cuda"
	DeviceInfo info;
	size_t index = 0;       // among the devices of its backend
	std::string uuid;       // of the GPU, the same for every backend: 32 hex digits; empty: unknown
	std::string build;      // of driver and kernels: each is tested at its first use; empty: not tested
	std::string refused;    // why it cannot be used; empty if it can
	bool tunable = false;   // it has choices that can be measured
	std::string tuning_id;  // of device_tuning_path()
	std::string tuning_key; // of read_device_tuning()
	DeviceTuning tuned;     // measured choices
	std::vector<std::pair<std::string, std::string>> limits; // name, value: limits that matter here
};

class DeviceSet { // the devices one backend found
 public:
	virtual ~DeviceSet() = default;
	// Best first, refused ones last; refuse() does not move an entry.
	const std::vector<DeviceReport>& reports() const { return reports_; }
	void refuse(size_t index, const std::string& why) { reports_[index].refused = why; }
	// Opens entry `index`. Throws Error{Device} with the reason if it is refused. May be called once per object.
	virtual std::unique_ptr<Backend> open(size_t index) = 0;

 protected:
	std::vector<DeviceReport> reports_;
};

struct BackendRow {
	const char* name;
	bool automatic; // its devices may be chosen when none is requested
	std::unique_ptr<DeviceSet> (*find)(
	    const BackendOptions&); // never throws for a missing loader: that is a report too
};
std::span<const BackendRow> backend_table();
// Adds a row; call it before devices are listed. For tests that run kernels on their own devices.
void add_backend(const BackendRow&);

// All devices of all backends, best first.
std::vector<DeviceReport> list_devices(const BackendOptions& = {});
// The device that open_backend() would open. Throws Error{Device} if there is none, or if it is refused.
DeviceReport find_device(const BackendOptions& = {});
// Throws Error{Device} with every refusal when there is no such device. With `check` or `dump` the result is wrapped in
// a CheckedBackend. Otherwise, when a build of driver and kernels is opened for the first time, a few ops are compared
// with the cpu backend. If they differ, the device is refused; if no device was requested, the next best is opened.
std::unique_ptr<Backend> open_backend(const BackendOptions& = {});

} // namespace kvrun
