// Lists and opens CUDA devices.
#include "backends/cuda/open_cuda.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/host_memory.h"

namespace kvrun::cuda {
namespace {

constexpr int kLeastMajor = 7, kLeastMinor = 5; // compute capability of the oldest architecture kernels are built for

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

class CudaDevices final : public DeviceSet {
 public:
	CudaDevices(const Runtime& runtime, const Kernels& kernels, const char* name, const BackendOptions& o)
	    : rt_(runtime), kernels_(kernels), name_(name), poison_(o.poison) {
		int n = 0;
		const int result = rt_.device_count(&n);
		if (result != kOk || n == 0) {
			refuse("", result == kErrorOldDriver ? "no NVIDIA driver, or one older than this build needs"
			           : result == kErrorNoDevice || result == kOk
			               ? "the NVIDIA driver found no device"
			               : fmt::format("the CUDA runtime returned {}", rt_.error_name(result)));
			return;
		}
		int driver = 0, built = 0;
		(void)rt_.versions(&driver, &built);
		for (int i = 0; i < n; ++i) add(i, fmt::format("CUDA {} driver, {} runtime", version(driver), version(built)));
	}

	std::unique_ptr<Backend> open(size_t index) override {
		KV_ASSERT(index < reports_.size());
		const DeviceReport& r = reports_[index];
		if (!r.refused.empty()) fail(Code::Device, "{}{}{}", r.info.name, r.info.name.empty() ? "" : ": ", r.refused);
		return std::make_unique<CudaBackend>(rt_, kernels_, name_, r.info, OpenOptions{int(index), poison_});
	}

 private:
	void refuse(std::string name, std::string why) {
		DeviceReport r;
		r.backend = name_;
		r.info.name = std::move(name);
		r.refused = "CUDA: " + std::move(why);
		reports_.push_back(std::move(r));
	}

	// Entry i of the reports is device i of the runtime.
	void add(int device, const std::string& driver) {
		DeviceProperties p;
		if (const int result = rt_.properties(device, &p); result != kOk)
			return refuse(fmt::format("CUDA device {}", device),
			              fmt::format("cudaGetDeviceProperties returned {}", rt_.error_name(result)));
		DeviceReport r;
		r.backend = name_;
		r.info.name = p.name;
		r.info.driver = driver;
		r.info.type = p.integrated ? "integrated" : "discrete";
		r.info.memory_bytes = p.memory_bytes;
		r.info.free_bytes = p.memory_bytes - p.memory_bytes / 20;
		r.info.max_buffer_bytes = p.memory_bytes;
		r.info.max_view_bytes = SIZE_MAX;
		r.info.shares_memory = p.integrated;
		r.info.mapped_bytes = p.maps_host && !p.integrated ? host_free_bytes() : 0;
		r.info.peak_bytes_per_s = p.peak_bytes_per_s;
		r.info.piece_tokens = kThreads; // a tile of attention
		r.info.fill_workgroups = uint32_t(p.multiprocessors) * kAttendBlocks;
		if (p.major < kLeastMajor || (p.major == kLeastMajor && p.minor < kLeastMinor))
			r.refused = fmt::format("CUDA: compute capability {}.{}, kvrun needs {}.{}; Vulkan may do", p.major,
			                        p.minor, kLeastMajor, kLeastMinor);
		std::string uuid;
		for (const uint8_t b : p.uuid) uuid += fmt::format("{:02x}", b);
		r.uuid = uuid;
		r.limits = {{"compute capability", fmt::format("{}.{}", p.major, p.minor)},
		            {"multiprocessors", fmt::format("{}", p.multiprocessors)}};
		reports_.push_back(std::move(r));
	}

	const Runtime& rt_;
	const Kernels kernels_;
	const char* name_;
	bool poison_;
};

} // namespace

std::unique_ptr<DeviceSet> find_devices(const Runtime& runtime, const Kernels& kernels, const char* name,
                                        const BackendOptions& o) {
	return std::make_unique<CudaDevices>(runtime, kernels, name, o);
}

} // namespace kvrun::cuda
