// Instance, choice of device, its capabilities, the logical device and its queues.
#pragma once
#include "backends/registry.h"
#include "backends/vulkan/knobs.h"
#include "backends/vulkan/matrices.h"
#include "backends/vulkan/vk.h"
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace kvrun::vk {

// All device properties that the backend uses. Filled once, clamped by BackendOptions::test_caps; no other code queries
// limits.
struct Caps {
	uint32_t api = 0; // VK_MAKE_API_VERSION
	uint32_t vendor = 0, device = 0, driver_version = 0;
	VkDriverId driver_id{};
	uint8_t cache_uuid[VK_UUID_SIZE] = {};
	uint8_t device_uuid[VK_UUID_SIZE] = {}; // of the GPU
	bool is_cpu = false;
	uint32_t cores = 0; // AMD compute units, NVIDIA multiprocessors; 0: unknown
	// limits
	uint32_t workgroup = 0;          // invocations per workgroup
	uint32_t workgroup_size[3] = {}; // per dimension
	uint32_t groups[3] = {};         // workgroups per dispatch and dimension
	uint32_t shared_bytes = 0;       // per workgroup
	uint32_t ssbo = 0;               // storage buffers per stage
	uint32_t push_bytes = 0;
	uint64_t range = 0;           // largest storage buffer binding, bytes
	uint32_t align = 0;           // of storage buffer offsets, bytes
	uint64_t texel_range = 0;     // largest uniform texel buffer, bytes; 0: kernels do not use them on this device
	uint32_t texel_align = 0;     // of texel buffer offsets, bytes, at least 16
	uint32_t atom = 0;            // of mapped ranges of memory that is not coherent, bytes
	uint64_t max_alloc = 0;       // maxMemoryAllocationSize
	uint64_t max_buffer = 0;      // largest VkBuffer
	uint32_t max_allocations = 0; // maxMemoryAllocationCount
	double tick_ns = 0;           // of a timestamp; 0: the queue has none
	uint64_t tick_mask = 0;
	uint32_t transfer_family = UINT32_MAX; // family of copy-only queues; UINT32_MAX if there is none
	// subgroups
	uint32_t subgroup = 0; // size pipelines run with, unless their registers do not suffice (Kernels::get)
	uint32_t subgroup_min = 0, subgroup_max = 0;
	uint32_t subgroup_most = 0; // of a workgroup whose pipeline requires their size
	bool subgroup_pin = false;  // the size can be required, and differs between pipelines otherwise
	bool subgroup_ops = false;  // arithmetic and shuffle in compute
	// optional features, enabled when present
	bool int_dot = false; // products of 4 packed bytes, signed and unsigned, in hardware
	bool push_descriptor = false;
	bool robust = true;               // robustBufferAccess, which every driver has; tests turn it off
	bool pipeline_robustness = false; // a pipeline can be compiled without bounds checks
	bool memory_budget = false;
	bool executable_properties = false;
	MatrixShape matrix;          // of cooperative matrices; m = 0 if the device has none
	bool attend_matrices = true; // attention of prompts may use them, not only matmul
	bool matrix_rows = false;    // they are reduced by row, converted, and changed by element: MatrixRowsFeatures
	// A smaller subgroup has more registers per lane, and the driver says which pipelines spill.
	bool can_narrow() const { return subgroup_pin && subgroup > subgroup_min && executable_properties; }
	// memory
	bool has_memory = false; // at least one heap and one type
	uint32_t heaps = 0;      // bits of those that buffers come from: find_heaps()
	uint64_t heap_bytes = 0; // of them together
	// Host memory that kernels read in place (Mem::Mapped), separate from those heaps; 0 if there is none.
	uint32_t mapped_heaps = 0; // bits; 0 where tests describe a card on a device that has one heap
	uint64_t mapped_bytes = 0;
	bool visible = true; // false: the host does not access Mem::Device and Mem::Arrival, whatever their type allows
	// The validation layer assumes that a dispatch writes all that is bound. So dispatches of one op, which write
	// different parts, need barriers between them.
	bool whole_bindings = false;
	Knobs knobs; // choices between designs, measured on this device or kvrun's own
};

uint32_t validation_layer_version(); // the Vulkan version it was made for; 0: there is none
// Collects messages of the validation layer.
class Messages {
 public:
	void add(std::string text);
	std::string first() const; // empty when none
	size_t count() const;
	void take(); // throws Error{Internal} with the first message if there is any new one

 private:
	mutable std::mutex mutex_;
	std::vector<std::string> all_;
	size_t taken_ = 0;
};

class Instance { // loader, VkInstance and, if asked for, the validation layer
 public:
	// validate: as in BackendOptions. Throws Error{Device}: no loader, no driver, no layer.
	explicit Instance(const std::string& validate);
	~Instance();
	Instance(const Instance&) = delete;
	VkInstance handle() const { return instance_; }
	Messages& messages() { return messages_; }
	bool validating() const { return messenger_ != VK_NULL_HANDLE; }

 private:
	VkInstance instance_ = VK_NULL_HANDLE;
	VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
	PFN_vkDestroyDebugUtilsMessengerEXT destroy_messenger_ = nullptr; // the global one may be another instance's
	Messages messages_;
};

struct Candidate { // one physical device
	VkPhysicalDevice handle = VK_NULL_HANDLE;
	Caps caps;
	DeviceReport report; // refused is set when kvrun cannot use it
	uint32_t queue_family = 0;
};
// All devices, best first: discrete, integrated, virtual, cpu; driver order within a type. Refused ones last.
std::vector<Candidate> candidates(Instance&, const BackendOptions&);
// The family in `all` whose queues only copy; UINT32_MAX if there is none. Video and optical flow engines can also
// copy, but are not meant for it, and some drivers refuse their queues.
uint32_t find_transfer_family(std::span<const VkQueueFamilyProperties> all);
// The heaps for buffers of kernels, as bits: those on the device, or all heaps of a device that shares host memory,
// because it may declare only a small part as its own. A card's small second heap is a window into the first.
uint32_t find_heaps(const VkPhysicalDeviceMemoryProperties&, bool shares_memory);
// The heaps of host memory that kernels of a card read over the bus, as bits; 0 if host and device share memory.
uint32_t find_mapped_heaps(const VkPhysicalDeviceMemoryProperties&, uint32_t own_heaps);
// Bytes of Caps::mapped_bytes that are still available when `used` bytes are taken.
uint64_t mapped_free_bytes(VkPhysicalDevice, const Caps&, uint64_t used);
// Bytes that may still be allocated in those of Caps::heaps among `heaps`: budget - usage, or 80 % of them less `used`;
// never negative.
uint64_t free_bytes(VkPhysicalDevice, const Caps&, uint32_t heaps, uint64_t used);
// min(budget, heap) less usage and a reserve of a tenth of the heap, at most 1 GiB; never negative.
uint64_t budget_left(uint64_t budget, uint64_t usage, uint64_t heap);
// Applies "workgroup=128,shared=16384" (BackendOptions::test_caps) to caps. Throws Error{Invalid} naming an unknown
// word.
void clamp_caps(Caps&, const std::string& text);
// Most storage buffers any embedded kernel binds.
uint32_t ssbo_needed();

class Device { // logical device, one compute queue, and a transfer queue if there is one
 public:
	Device(std::unique_ptr<Instance>, const Candidate&, bool for_statistics = false);
	~Device();
	Device(const Device&) = delete;

	const Caps& caps() const { return caps_; }
	const DeviceReport& report() const { return report_; }
	bool tune(std::string_view name, std::string_view value); // set_knob() of this device
	VkPhysicalDevice physical() const { return physical_; }
	VkDevice handle() const { return device_; }
	VkQueue queue() const { return queue_; }
	uint32_t queue_family() const { return family_; }
	VkQueue transfer_queue() const { return transfer_; } // null if there is only queue()
	Instance& instance() { return *instance_; }
	// After abandon(), objects of the device are leaked: work that does not end may still use them.
	void abandon() { abandoned_ = true; }
	bool abandoned() const { return abandoned_; }
	void name(VkObjectType, uint64_t object, const char* label); // for validation messages and debuggers
	VolkDeviceTable fn{};                                        // device functions without the loader's dispatch

 private:
	std::unique_ptr<Instance> instance_;
	VkPhysicalDevice physical_ = VK_NULL_HANDLE;
	VkDevice device_ = VK_NULL_HANDLE;
	VkQueue queue_ = VK_NULL_HANDLE, transfer_ = VK_NULL_HANDLE;
	uint32_t family_ = 0;
	bool abandoned_ = false;
	Caps caps_;
	DeviceReport report_;
	PFN_vkSetDebugUtilsObjectNameEXT set_name_ = nullptr; // only under validation
};

} // namespace kvrun::vk
