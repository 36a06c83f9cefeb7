// Physical devices: their capabilities, and reasons to refuse them; the logical device and its queues.
#include "backends/vulkan/device.h"
#include "backends/host_memory.h"
#include "backends/vulkan/driver_identity.h"
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/spirv.h"
#include "engine/core/system/machine.h"
#include "kernel_list.inc"
#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

constexpr uint32_t kComputeFamily = UINT32_MAX - 1; // in test caps: the family of the compute queue

struct Features { // one chain for the query and for creation
	VkPhysicalDeviceFeatures2 base = make<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
	VkPhysicalDeviceVulkan11Features v11 =
	    make<VkPhysicalDeviceVulkan11Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
	VkPhysicalDeviceVulkan12Features v12 =
	    make<VkPhysicalDeviceVulkan12Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
	VkPhysicalDeviceVulkan13Features v13 =
	    make<VkPhysicalDeviceVulkan13Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
	VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executable =
	    make<VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR>(
	        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR);
	MatrixFeatures matrix;
	MatrixRowsFeatures rows;
	VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness = make<VkPhysicalDevicePipelineRobustnessFeaturesEXT>(
	    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT);
	Features(bool with_executable, bool with_matrix, bool with_rows, bool with_robustness) {
		base.pNext = &v11;
		v11.pNext = &v12;
		v12.pNext = &v13;
		void** end = &v13.pNext;
		const auto append = [&end](auto& s) {
			*end = &s;
			end = &s.pNext;
		};
		if (with_executable) append(executable);
		if (with_matrix) append(matrix);
		if (with_rows) append(rows);
		if (with_robustness) append(robustness);
	}
	Features(const Features&) = delete;
};

std::set<std::string> extensions_of(VkPhysicalDevice d) {
	uint32_t n = 0;
	VK_TRY(vkEnumerateDeviceExtensionProperties(d, nullptr, &n, nullptr));
	std::vector<VkExtensionProperties> all(n);
	VK_TRY(vkEnumerateDeviceExtensionProperties(d, nullptr, &n, all.data()));
	std::set<std::string> names;
	for (const VkExtensionProperties& e : all) names.insert(e.extensionName);
	return names;
}

const char* type_name(VkPhysicalDeviceType t) {
	switch (t) {
	case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete";
	case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated";
	case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual";
	case VK_PHYSICAL_DEVICE_TYPE_CPU: return "cpu";
	default: return "other";
	}
}
int type_rank(const std::string& type) {
	constexpr const char* order[] = {"discrete", "integrated", "virtual", "other", "cpu"};
	return int(std::find(std::begin(order), std::end(order), type) - std::begin(order));
}

// The subgroup size that pipelines require, if a driver may otherwise choose one per pipeline.
uint32_t preferred_subgroup(uint32_t vendor, uint32_t fallback, uint32_t lo, uint32_t hi) {
	constexpr uint32_t kAmd = 0x1002, kIntel = 0x8086;
	const uint32_t want = vendor == kAmd ? 32 : vendor == kIntel ? 16 : fallback;
	return std::clamp(want, lo, hi);
}

void read_limits(Caps& c, VkPhysicalDevice d, DeviceInfo& info) {
	VkPhysicalDeviceProperties2 props =
	    make<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
	VkPhysicalDeviceVulkan11Properties v11 =
	    make<VkPhysicalDeviceVulkan11Properties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
	VkPhysicalDeviceVulkan12Properties v12 =
	    make<VkPhysicalDeviceVulkan12Properties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES);
	VkPhysicalDeviceVulkan13Properties v13 =
	    make<VkPhysicalDeviceVulkan13Properties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES);
	vkGetPhysicalDeviceProperties2(d, &props);
	const VkPhysicalDeviceProperties& p = props.properties;
	const VkPhysicalDeviceLimits& l = p.limits;
	c.api = p.apiVersion;
	c.vendor = p.vendorID;
	c.device = p.deviceID;
	c.driver_version = p.driverVersion;
	std::memcpy(c.cache_uuid, p.pipelineCacheUUID, VK_UUID_SIZE);
	c.is_cpu = p.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
	info.name = p.deviceName;
	info.type = type_name(p.deviceType);
	info.is_cpu = c.is_cpu;
	c.workgroup = l.maxComputeWorkGroupInvocations;
	std::copy_n(l.maxComputeWorkGroupSize, 3, c.workgroup_size);
	std::copy_n(l.maxComputeWorkGroupCount, 3, c.groups);
	c.shared_bytes = l.maxComputeSharedMemorySize;
	c.ssbo = std::min(l.maxPerStageDescriptorStorageBuffers, l.maxPerStageResources);
	c.push_bytes = l.maxPushConstantsSize;
	c.range = l.maxStorageBufferRange;
	c.align = uint32_t(std::max<VkDeviceSize>(l.minStorageBufferOffsetAlignment, 4));
	c.atom = uint32_t(l.nonCoherentAtomSize);
	c.texel_range = uint64_t(l.maxTexelBufferElements) * 16;
	c.texel_align = uint32_t(std::max<VkDeviceSize>(l.minTexelBufferOffsetAlignment, 16));
	c.max_allocations = l.maxMemoryAllocationCount;
	c.tick_ns = l.timestampPeriod;
	if (c.api < VK_API_VERSION_1_3) return; // the other structs may be unknown to the driver
	props.pNext = &v11;
	v11.pNext = &v12;
	v12.pNext = &v13;
	// Two extensions tell the number of cores.
	VkPhysicalDeviceShaderCorePropertiesAMD amd =
	    make<VkPhysicalDeviceShaderCorePropertiesAMD>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);
	VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv = make<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV>(
	    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);
	const std::set<std::string> extensions = extensions_of(d);
	if (extensions.contains(VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) v13.pNext = &amd;
	if (extensions.contains(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) v13.pNext = &nv;
	vkGetPhysicalDeviceProperties2(d, &props);
	c.cores = std::max(nv.shaderSMCount,
	                   amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray);
	info.driver = v12.driverName;
	if (v12.driverInfo[0]) info.driver += std::string(" ") + v12.driverInfo;
	c.driver_id = v12.driverID;
	std::memcpy(c.device_uuid, v11.deviceUUID, VK_UUID_SIZE);
	c.max_alloc = v11.maxMemoryAllocationSize;
	c.max_buffer = v13.maxBufferSize;
	c.subgroup_min = v13.minSubgroupSize;
	c.subgroup_max = v13.maxSubgroupSize;
	constexpr VkSubgroupFeatureFlags kOps = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
	                                        VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT;
	c.subgroup_ops =
	    (v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) && (v11.subgroupSupportedOperations & kOps) == kOps;
	// Software drivers fetch texels many times faster than they load from storage buffers. Used if they allow enough
	// texels.
	constexpr uint32_t kTexelLanes = 8; // lanes of the kernels in shaders/texel
	if (!c.is_cpu || !c.subgroup_ops || v11.subgroupSize < kTexelLanes || c.texel_range < c.range ||
	    c.texel_align > 256)
		c.texel_range = 0;
	c.subgroup_pin = c.subgroup_min != c.subgroup_max && (v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
	c.subgroup_most = v13.maxComputeWorkgroupSubgroups;
	c.subgroup = c.subgroup_pin ? preferred_subgroup(c.vendor, v11.subgroupSize, c.subgroup_min, c.subgroup_max)
	                            : v11.subgroupSize;
	if (c.subgroup_pin) // with a required size, this limit applies
		c.workgroup = uint32_t(std::min<uint64_t>(c.workgroup, uint64_t(c.subgroup) * c.subgroup_most));
	c.int_dot =
	    v13.integerDotProduct4x8BitPackedSignedAccelerated && v13.integerDotProduct4x8BitPackedUnsignedAccelerated;
}

// Sets the optional features; returns what is missing of the required ones.
std::string read_features(Caps& c, VkInstance instance, VkPhysicalDevice d) {
	const std::set<std::string> ext = extensions_of(d);
	c.executable_properties = ext.count(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
	c.push_descriptor = ext.count(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
	c.memory_budget = ext.count(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
	c.pipeline_robustness = ext.count(VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME);
	const bool matrix = ext.count(kMatrixExtension), rows = matrix && ext.count(kMatrixRowsExtension);
	Features f(c.executable_properties, matrix, rows, c.pipeline_robustness);
	vkGetPhysicalDeviceFeatures2(d, &f.base);
	c.pipeline_robustness = c.pipeline_robustness && f.robustness.pipelineRobustness;
	c.executable_properties = c.executable_properties && f.executable.pipelineExecutableInfo;
	if (matrix && f.matrix.cooperativeMatrix && f.v12.vulkanMemoryModel && f.v12.shaderFloat16)
		c.matrix = best_matrix_shape(instance, d);
	c.matrix_rows = c.matrix && f.rows.suffice();
	const std::pair<VkBool32, const char*> required[] = {{f.v13.synchronization2, "synchronization2"},
	                                                     {f.v13.maintenance4, "maintenance4"},
	                                                     {f.v13.subgroupSizeControl, "subgroupSizeControl"},
	                                                     {f.v13.computeFullSubgroups, "computeFullSubgroups"}};
	for (auto [present, name] : required)
		if (!present) return name;
	return "";
}

void read_memory(Caps& c, VkPhysicalDevice d, bool shares_memory) {
	VkPhysicalDeviceMemoryProperties m{};
	vkGetPhysicalDeviceMemoryProperties(d, &m);
	c.heaps = find_heaps(m, shares_memory);
	for (uint32_t i = 0; i < m.memoryHeapCount; ++i)
		if (c.heaps >> i & 1) c.heap_bytes += m.memoryHeaps[i].size;
	c.has_memory = c.heap_bytes > 0;
	c.mapped_heaps = find_mapped_heaps(m, c.heaps);
	for (uint32_t i = 0; i < m.memoryHeapCount; ++i)
		if (c.mapped_heaps >> i & 1) c.mapped_bytes += m.memoryHeaps[i].size;
}

int compute_family(Caps& c, VkPhysicalDevice d) {
	uint32_t n = 0;
	vkGetPhysicalDeviceQueueFamilyProperties(d, &n, nullptr);
	std::vector<VkQueueFamilyProperties> all(n);
	vkGetPhysicalDeviceQueueFamilyProperties(d, &n, all.data());
	int found = -1;
	for (uint32_t i = 0; i < n && found < 0; ++i)
		if ((all[i].queueFlags & VK_QUEUE_COMPUTE_BIT) && all[i].queueCount) found = int(i);
	if (found < 0) return -1;
	c.transfer_family = find_transfer_family(all);
	const uint32_t bits = all[size_t(found)].timestampValidBits;
	if (bits == 0) c.tick_ns = 0;
	c.tick_mask = bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
	return found;
}

std::string refusal(const Caps& c, int family, const std::string& missing_feature) {
	if (c.api < VK_API_VERSION_1_3)
		return fmt::format("Vulkan {}.{}, kvrun needs 1.3; a newer driver may offer it", VK_API_VERSION_MAJOR(c.api),
		                   VK_API_VERSION_MINOR(c.api));
	if (family < 0) return "no queue that computes";
	if (!missing_feature.empty()) return fmt::format("lacks the feature {}", missing_feature);
	if (!c.has_memory) return "unusable: it reports no memory (a driver without hardware?)";
	struct Least {
		const char* name;
		uint64_t has, needs;
	};
	const Least least[] = {{"maxComputeWorkGroupInvocations", c.workgroup, 128},
	                       {"maxComputeWorkGroupSize[0]", c.workgroup_size[0], 128},
	                       {"maxComputeSharedMemorySize", c.shared_bytes, 16384},
	                       {"maxPushConstantsSize", c.push_bytes, 128},
	                       {"maxPerStageDescriptorStorageBuffers", c.ssbo, ssbo_needed()},
	                       {"maxComputeWorkGroupCount[0]", c.groups[0], 65535},
	                       {"maxStorageBufferRange", c.range, 16u << 20},
	                       {"maxMemoryAllocationSize", c.max_alloc, 16u << 20}};
	for (const Least& l : least)
		if (l.has < l.needs) return fmt::format("{} is {}, kvrun needs {}", l.name, l.has, l.needs);
	if (c.align > 256) return fmt::format("minStorageBufferOffsetAlignment is {}, kvrun needs at most 256", c.align);
	return "";
}

std::string mib(uint64_t bytes) {
	return bytes >> 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} B", bytes);
}
std::string yes(bool b) { return b ? "yes" : "no"; }

void describe(DeviceReport& r, const Caps& c) {
	r.uuid = uuid_text(c.device_uuid);
	r.limits = {{"Vulkan", fmt::format("{}.{}.{}", VK_API_VERSION_MAJOR(c.api), VK_API_VERSION_MINOR(c.api),
	                                   VK_API_VERSION_PATCH(c.api))},
	            {"subgroup", c.subgroup_min == c.subgroup_max
	                             ? fmt::format("{}", c.subgroup)
	                             : fmt::format("{} ({}..{})", c.subgroup, c.subgroup_min, c.subgroup_max)},
	            {"subgroup arithmetic", yes(c.subgroup_ops)},
	            {"cores", c.cores ? fmt::format("{}", c.cores) : "unknown"},
	            {"workgroup", fmt::format("{}", c.workgroup)},
	            {"shared memory", fmt::format("{} KiB", c.shared_bytes >> 10)},
	            {"buffer binding", mib(c.range)},
	            {"allocation", mib(c.max_alloc)},
	            {"storage buffers", fmt::format("{}", c.ssbo)},
	            {"texel buffer", c.texel_range ? mib(c.texel_range) : "not used"},
	            {"offset alignment", fmt::format("{} B", c.align)},
	            {"integer dot product", yes(c.int_dot)},
	            {"matrices",
	             c.matrix ? fmt::format("{}x{}x{}{}", c.matrix.m, c.matrix.n, c.matrix.k, c.matrix_rows ? ", rows" : "")
	                      : "no"},
	            {"push descriptors", yes(c.push_descriptor)},
	            {"bounds checks off", c.pipeline_robustness ? "per kernel" : "no"},
	            {"memory budget", yes(c.memory_budget)},
	            {"transfer queue", yes(c.transfer_family != UINT32_MAX)},
	            {"timestamps", c.tick_ns > 0 ? fmt::format("{} ns", c.tick_ns) : "no"},
	            {"compiler statistics", yes(c.executable_properties)},
	            {"device id", fmt::format("{:04x}:{:04x}", c.vendor, c.device)}, // PCI ids of a GPU
	            {"driver version", fmt::format("{:#x}", c.driver_version)}};     // encoding differs by vendor
}

Candidate inspect(VkInstance instance, VkPhysicalDevice d, const BackendOptions& o) {
	Candidate out;
	out.handle = d;
	out.report.backend = "vulkan";
	Caps& c = out.caps;
	DeviceInfo& info = out.report.info;
	read_limits(c, d, info);
	std::string missing;
	if (c.api >= VK_API_VERSION_1_3) missing = read_features(c, instance, d);
	read_memory(c, d, info.type == "integrated");
	const int family = compute_family(c, d);
	out.queue_family = uint32_t(std::max(family, 0));
	if (o.validate == "gpu") c.push_descriptor = false; // GPU-assisted validation (1.3.239) ignores them
	// Validation layers older than the extension report its structures as errors.
	if (o.f32_matmul || (!o.validate.empty() && o.validate != "0")) c.matrix = {};
	// Validation layer 1.4.309 does not count whole bindings, 1.4.363 does.
	c.whole_bindings = o.validate == "sync" && validation_layer_version() > VK_MAKE_API_VERSION(0, 1, 4, 309);
	if (!o.transfers) c.transfer_family = UINT32_MAX;
	clamp_caps(c, o.test_caps);
	if (o.f32_matmul) c.int_dot = false;
	if (c.transfer_family == kComputeFamily) c.transfer_family = out.queue_family;
	info.memory_bytes = c.heap_bytes;
	if (c.has_memory) info.free_bytes = free_bytes(d, c, c.heaps, 0);
	info.shares_memory = c.mapped_bytes == 0 && (info.is_cpu || info.type == "integrated");
	info.mapped_bytes = mapped_free_bytes(d, c, 0);
	info.max_buffer_bytes = std::min(c.max_alloc, c.max_buffer);
	info.max_view_bytes = std::min<uint64_t>(c.range, info.max_buffer_bytes);
	// Turing's matrices give wrong results in some drivers (llama.cpp does not use them): only if the self-test can
	// run.
	if (is_turing(c) && o.cache_dir.empty()) c.matrix = {};
	out.report.tuning_id = fmt::format("{:04x}-{:04x}-{}", c.vendor, c.device, uuid_text(c.device_uuid));
	out.report.tuning_key = driver_key(c, info) + (o.test_caps.empty() ? "" : " " + o.test_caps);
	if (o.tuned && !o.cache_dir.empty())
		out.report.tuned = read_knobs(c, o.cache_dir, out.report.tuning_id, out.report.tuning_key, info.name);
	const auto describe_all = [&] {
		describe_choices(c, info);
		if (!info.half_matmul) c.matrix = {};
	};
	describe_all();
	if (info.half_matmul && std::ranges::count(o.no_matrices, device_build(c, out.report))) {
		c.matrix = {};
		describe_all();
	}
	info.lists_candidates = !c.is_cpu; // software drivers have logits in host memory
	out.report.refused = refusal(c, family, missing);
	if (out.report.refused.empty()) out.report.refused = broken_compiler(info.name, sys::system_names().machine);
	out.report.tunable = out.report.refused.empty() && !tunables(c).empty();
	out.report.build = device_build(c, out.report);
	describe(out.report, c);
	return out;
}

} // namespace

uint32_t find_transfer_family(std::span<const VkQueueFamilyProperties> all) {
	constexpr VkQueueFlags kDecode = 0x20, kEncode = 0x40, kOpticalFlow = 0x100; // bits that older headers do not name
	constexpr VkQueueFlags kMore = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT | kDecode | kEncode | kOpticalFlow;
	for (size_t i = 0; i < all.size(); ++i)
		if ((all[i].queueFlags & (VK_QUEUE_TRANSFER_BIT | kMore)) == VK_QUEUE_TRANSFER_BIT && all[i].queueCount)
			return uint32_t(i);
	return UINT32_MAX;
}

uint32_t ssbo_needed() {
	static const uint32_t most = [] {
		size_t n = 0;
		for (const KernelBlob& b : kernel_blobs()) n = std::max(n, reflect(b.spirv, b.name).bindings.size());
		return uint32_t(n);
	}();
	return most;
}

std::vector<Candidate> candidates(Instance& instance, const BackendOptions& o) {
	uint32_t n = 0;
	const auto list = [&](VkPhysicalDevice* to) {
		const VkResult r = call_loader([&] { return vkEnumeratePhysicalDevices(instance.handle(), &n, to); });
		if (r < 0) fail_call(r, "vkEnumeratePhysicalDevices");
	};
	list(nullptr);
	std::vector<VkPhysicalDevice> handles(n);
	list(handles.data());
	std::vector<Candidate> all;
	for (VkPhysicalDevice d : handles) all.push_back(inspect(instance.handle(), d, o));
	std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
		const bool ra = !a.report.refused.empty(), rb = !b.report.refused.empty();
		if (ra != rb) return rb;
		return type_rank(a.report.info.type) < type_rank(b.report.info.type);
	});
	return all;
}

uint32_t find_heaps(const VkPhysicalDeviceMemoryProperties& m, bool shares_memory) {
	uint32_t typed = 0, local = 0;
	for (uint32_t i = 0; i < m.memoryTypeCount; ++i) {
		const uint32_t heap = m.memoryTypes[i].heapIndex;
		if (!m.memoryHeaps[heap].size) continue;
		typed |= 1u << heap;
		if (m.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) local |= 1u << heap;
	}
	const uint32_t usable = local && !shares_memory ? local : typed;
	uint64_t largest = 0;
	for (uint32_t i = 0; i < m.memoryHeapCount; ++i)
		if (usable >> i & 1) largest = std::max<uint64_t>(largest, m.memoryHeaps[i].size);
	uint32_t out = 0;
	for (uint32_t i = 0; i < m.memoryHeapCount; ++i)
		if ((usable >> i & 1) && (shares_memory || m.memoryHeaps[i].size > largest / 8)) out |= 1u << i;
	return out;
}

uint32_t find_mapped_heaps(const VkPhysicalDeviceMemoryProperties& m, uint32_t own_heaps) {
	constexpr VkMemoryPropertyFlags kSeen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
	uint32_t out = 0;
	for (uint32_t i = 0; i < m.memoryTypeCount; ++i) {
		const VkMemoryPropertyFlags f = m.memoryTypes[i].propertyFlags;
		const uint32_t heap = m.memoryTypes[i].heapIndex;
		const bool local = (f & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) || (own_heaps >> heap & 1);
		if (!local && (f & kSeen) == kSeen && m.memoryHeaps[heap].size) out |= 1u << heap;
	}
	return out;
}

uint64_t mapped_free_bytes(VkPhysicalDevice d, const Caps& c, uint64_t used) {
	if (!c.mapped_heaps) return c.mapped_bytes > used ? c.mapped_bytes - used : 0;
	Caps host = c;
	host.heaps = c.mapped_heaps, host.heap_bytes = c.mapped_bytes;
	return std::min<uint64_t>(free_bytes(d, host, host.heaps, used), host_free_bytes());
}

uint64_t free_bytes(VkPhysicalDevice d, const Caps& c, uint32_t heaps, uint64_t used) {
	heaps &= c.heaps;
	VkPhysicalDeviceMemoryBudgetPropertiesEXT budget =
	    make<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
	VkPhysicalDeviceMemoryProperties2 m = make<VkPhysicalDeviceMemoryProperties2>(
	    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, c.memory_budget ? &budget : nullptr);
	vkGetPhysicalDeviceMemoryProperties2(d, &m);
	uint64_t size = 0, allowed = 0, usage = 0;
	for (uint32_t i = 0; i < m.memoryProperties.memoryHeapCount; ++i)
		if (heaps >> i & 1) {
			size += m.memoryProperties.memoryHeaps[i].size;
			allowed += budget.heapBudget[i], usage += budget.heapUsage[i];
		}
	size = std::min(size, c.heap_bytes);
	if (c.memory_budget) return budget_left(allowed, usage, size);
	const uint64_t most = size / 5 * 4;
	return most > used ? most - used : 0;
}

uint64_t budget_left(uint64_t budget, uint64_t usage, uint64_t heap) {
	const uint64_t most = std::min(budget, heap);
	const uint64_t reserve = std::min<uint64_t>(heap / 10, uint64_t(1) << 30); // for the driver and other programs
	const uint64_t taken = usage > UINT64_MAX - reserve ? UINT64_MAX : usage + reserve;
	return most > taken ? most - taken : 0;
}

void clamp_caps(Caps& c, const std::string& text) {
	for (size_t at = 0; at < text.size();) {
		const size_t end = std::min(text.find(',', at), text.size());
		const std::string word = text.substr(at, end - at);
		at = end + 1;
		const size_t eq = word.find('=');
		uint64_t v = 0;
		const char* last = word.data() + word.size();
		if (eq == word.npos || std::from_chars(word.data() + eq + 1, last, v).ptr != last || eq + 1 == word.size())
			fail(Code::Invalid, "the test caps have '{}', expected name=number", word);
		const std::string key = word.substr(0, eq);
		auto least32 = [&](uint32_t& x) { x = uint32_t(std::min<uint64_t>(x, v)); };
		auto least64 = [&](uint64_t& x) { x = std::min(x, v); };
		auto allow = [&](bool& x) { x = x && v != 0; };
		if (key == "workgroup") {
			least32(c.workgroup);
			for (uint32_t& s : c.workgroup_size) least32(s);
		} else if (key == "shared") // a software driver has more than it says: its shared memory is the host's
			c.shared_bytes = c.is_cpu ? uint32_t(v) : std::min(c.shared_bytes, uint32_t(v));
		else if (key == "ssbo")
			least32(c.ssbo);
		else if (key == "push")
			least32(c.push_bytes);
		else if (key == "range")
			least64(c.range);
		else if (key == "align")
			c.align = uint32_t(std::max<uint64_t>(c.align, v));
		else if (key == "texel_range")
			least64(c.texel_range);
		else if (key == "groups")
			for (uint32_t& g : c.groups) least32(g);
		else if (key == "alloc")
			least64(c.max_alloc);
		else if (key == "buffer")
			least64(c.max_buffer);
		else if (key == "heap") {
			least64(c.heap_bytes);
			c.has_memory = c.heap_bytes > 0;
		} else if (key == "mapped") { // describes a card with this much host memory, on a device with one heap
			c.mapped_bytes = c.mapped_heaps ? std::min(c.mapped_bytes, v) : v;
			c.memory_budget = false;   // the budget covers one heap only
		} else if (key == "visible") { // 0: the device's memory is written by copies only, as a card's
			allow(c.visible);
		} else if (key.starts_with("rate") || key.starts_with("bus")) { // read_rates.h
		} else if (key == "cores")                                      // for a device that does not report it
			c.cores = uint32_t(v);
		else if (key == "int_dot")
			c.int_dot = v > 1 || (c.int_dot && v != 0); // 2: also where they are slow
		else if (key == "matrices") {
			if (v == 0) c.matrix = {};
		} else if (key == "attend_matrices")
			allow(c.attend_matrices);
		else if (key == "matrix_rows")
			allow(c.matrix_rows);
		else if (key == "push_descriptor")
			allow(c.push_descriptor);
		else if (key == "pipeline_robustness")
			allow(c.pipeline_robustness);
		else if (key == "robust") // 0: newer validation layers report out-of-bounds accesses only then
			allow(c.robust);
		else if (key == "subgroup_ops")
			allow(c.subgroup_ops);
		else if (key == "cpu") // 0: workgroup sizes as for GPUs
			allow(c.is_cpu);
		else if (key == "vendor") // vendor id of the GPU to imitate
			c.vendor = uint32_t(v);
		else if (key == "memory_budget")
			allow(c.memory_budget);
		else if (key == "transfer") // 0: in order with ops; 2: separate submissions to the compute queue
			c.transfer_family = v == 0 ? UINT32_MAX : v == 2 ? kComputeFamily : c.transfer_family;
		else if (key.starts_with("tune_")) { // tune_matvec_rows=4; 0 and 1 of a switch are its off and on
			const std::string name = key.substr(5), text = word.substr(eq + 1);
			if (!set_knob(c.knobs, name, text) && !set_knob(c.knobs, name, v == 0 ? "off" : v == 1 ? "on" : text))
				fail(Code::Invalid, "the test caps have '{}', which is no choice", word);
		} else if (key == "timestamps")
			c.tick_ns = v ? c.tick_ns : 0;
		else
			fail(Code::Invalid, "the test caps have '{}', which is no limit it knows", key);
	}
}

Device::Device(std::unique_ptr<Instance> instance, const Candidate& from, bool for_statistics)
    : instance_(std::move(instance)), physical_(from.handle), family_(from.queue_family), caps_(from.caps),
      report_(from.report) {
	const bool statistics = caps_.executable_properties && (for_statistics || caps_.can_narrow());
	std::vector<const char*> extensions;
	if (caps_.push_descriptor) extensions.push_back(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
	if (caps_.memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
	if (statistics) extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
	const bool rows = caps_.matrix && caps_.matrix_rows;
	if (caps_.matrix) extensions.push_back(kMatrixExtension);
	if (rows) extensions.push_back(kMatrixRowsExtension);
	if (caps_.pipeline_robustness) extensions.push_back(VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME);
	Features f(statistics, bool(caps_.matrix), rows, caps_.pipeline_robustness); // only what is used
	f.base.features.robustBufferAccess = caps_.robust; // indices from data cannot leave a buffer
	f.robustness.pipelineRobustness = VK_TRUE;         // kernels marked IN_BOUNDS are compiled without it
	f.v13.synchronization2 = VK_TRUE;
	f.v13.maintenance4 = VK_TRUE;
	f.v13.subgroupSizeControl = VK_TRUE;
	f.v13.computeFullSubgroups = VK_TRUE;
	f.v13.shaderIntegerDotProduct = VK_TRUE; // every 1.3 driver has it, and robustBufferAccess
	f.executable.pipelineExecutableInfo = VK_TRUE;
	const bool transfers = caps_.transfer_family != UINT32_MAX;
	f.v12.timelineSemaphore = transfers; // every 1.3 driver has them
	f.v12.vulkanMemoryModel = f.v12.shaderFloat16 = f.matrix.cooperativeMatrix = bool(caps_.matrix);
	f.rows.reductions = f.rows.conversions = f.rows.perElementOperations = rows;
	const float priority = 1;
	VkDeviceQueueCreateInfo queues[2];
	for (VkDeviceQueueCreateInfo& q : queues) {
		q = make<VkDeviceQueueCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
		q.queueFamilyIndex = &q == queues ? family_ : caps_.transfer_family;
		q.queueCount = 1;
		q.pQueuePriorities = &priority;
	}
	VkDeviceCreateInfo info = make<VkDeviceCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &f.base);
	info.queueCreateInfoCount = transfers && caps_.transfer_family != family_ ? 2 : 1;
	info.pQueueCreateInfos = queues;
	info.enabledExtensionCount = uint32_t(extensions.size());
	info.ppEnabledExtensionNames = extensions.data();
	const auto create = [&] {
		return call_loader([&] { return vkCreateDevice(physical_, &info, nullptr, &device_); });
	};
	VkResult r = create();
	if (r < 0 && info.queueCreateInfoCount == 2) { // with copies in order with ops, no second queue is needed
		info.queueCreateInfoCount = 1;
		caps_.transfer_family = UINT32_MAX;
		r = create();
	}
	if (r < 0) fail_call(r, "vkCreateDevice");
	volkLoadDeviceTable(&fn, device_);
	fn.vkGetDeviceQueue(device_, family_, 0, &queue_);
	if (caps_.transfer_family != UINT32_MAX) fn.vkGetDeviceQueue(device_, caps_.transfer_family, 0, &transfer_);
	if (instance_->validating())
		set_name_ = reinterpret_cast<PFN_vkSetDebugUtilsObjectNameEXT>(
		    vkGetDeviceProcAddr(device_, "vkSetDebugUtilsObjectNameEXT"));
}

Device::~Device() {
	if (abandoned_) {
		(void)instance_.release();
		return;
	}
	if (device_ && !loader_is_stuck()) fn.vkDestroyDevice(device_, nullptr);
}

void Device::name(VkObjectType type, uint64_t object, const char* label) {
	if (!set_name_) return;
	VkDebugUtilsObjectNameInfoEXT info =
	    make<VkDebugUtilsObjectNameInfoEXT>(VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT);
	info.objectType = type;
	info.objectHandle = object;
	info.pObjectName = label;
	VK_TRY(set_name_(device_, &info));
}

} // namespace kvrun::vk
