// The registry's interface to the Vulkan backend, without Vulkan's headers.
#pragma once
#include "backends/registry.h"
#include <functional>
#include <string>
#include <vector>

namespace kvrun::vk {

struct KernelReport {                          // one pipeline of one device's compiler; numbers it does not give are 0
	std::string kernel, use;                   // "rope_store", "head_dim 128, neox"
	std::string error;                         // why it did not compile; empty if it did
	double ms = 0;                             // of compilation
	uint64_t vector_registers = 0;             // per lane; Intel: most that live at once, in units of 32 bytes
	uint64_t scalar_registers = 0;             // per wave
	uint64_t spills = 0, fills = 0;            // registers (AMD) or instructions (Intel, NVIDIA)
	uint64_t scratch_bytes = 0;                // per lane: memory that spills go to
	uint64_t shared_bytes = 0, code_bytes = 0; // of a workgroup; of the program
	uint64_t instructions = 0, vector_instructions = 0; // in the program; of them, arithmetic of vectors (AMD)
	uint64_t cycles = 0;   // the compiler's estimate for one wave; compares builds of a kernel
	uint64_t waves = 0;    // most on a SIMD (AMD) or SM (NVIDIA) at once
	uint32_t lanes = 0;    // of a subgroup, as required by the pipeline
	bool measured = false; // whether the driver has VK_KHR_pipeline_executable_properties
	std::string assembly;  // if requested and reported by the driver
	bool spilling() const { return spills || fills || scratch_bytes; }
};
// The uses of kernels to compile, by kernel and use; empty: all.
using UseFilter = std::function<bool(const std::string& kernel, const std::string& use)>;

// Adds `value` to the field of the report that a driver's statistic `name` belongs to; returns false for an unknown
// name, which may be a relevant one.
bool add_statistic(KernelReport&, std::string_view name, uint64_t value);

// The Vulkan devices of this machine, best first, refused ones with the reason; a missing loader or driver is one
// refused report. BackendOptions::probe tries drivers first: one that crashes is a refusal, not the end of this
// process.
class VulkanDevices final : public DeviceSet {
 public:
	explicit VulkanDevices(const BackendOptions& = {});
	~VulkanDevices() override;
	std::unique_ptr<Backend> open(size_t index) override;
	// Compiles every kernel for every use by ops; the device need not be able to run them.
	std::vector<KernelReport> compile_all(size_t index, const UseFilter& = {}, bool assembly = false) const;

 private:
	struct Found;             // instance and candidates
	void find_good(bool all); // all: true if no driver is left out
	BackendOptions options_;
	std::unique_ptr<Found> found_;
};

std::unique_ptr<DeviceSet> find_devices(const BackendOptions&);

// The installed ICD file whose name starts with `prefix` ("radeon_icd"); empty when there is none.
std::string find_icd(const std::string& prefix);

// The names that versions of RADV have for an AMD chip, `chip` first: RADV_FORCE_FAMILY is gfx1100 for Mesa 22, and
// navi31 for Mesa 23 and later.
std::vector<std::string> radv_names(const std::string& chip);

} // namespace kvrun::vk
