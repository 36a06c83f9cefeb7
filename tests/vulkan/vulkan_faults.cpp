// Makes Vulkan calls of this process fail on purpose: the n-th call of one function or of all. Can also miscompile a
// shader.
#include "tests/vulkan/vulkan_faults.h"
#include "backends/vulkan/vk.h"
#include <cstring>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

VulkanFaults faults;
PFN_vkGetInstanceProcAddr real_instance_proc = nullptr;
PFN_vkGetDeviceProcAddr real_device_proc = nullptr;

bool fails(const char* function) {
	const uint64_t of_function = ++faults.calls[function], of_all = ++faults.all_calls;
	const uint64_t n = faults.function.empty() ? of_all : of_function;
	if (!faults.function.empty() && faults.function != function) return false;
	if (n < faults.first || n > faults.last) return false;
	if (!faults.failed++) faults.failed_in = function;
	return true;
}

// Functions that return a VkResult.
#define CALLS(x)                                                                                                       \
	x(vkAllocateCommandBuffers) x(vkAllocateDescriptorSets) x(vkAllocateMemory) x(vkBeginCommandBuffer)                \
	    x(vkBindBufferMemory) x(vkCreateBuffer) x(vkCreateBufferView) x(vkCreateCommandPool)                           \
	        x(vkCreateComputePipelines) x(vkCreateDescriptorPool) x(vkCreateDescriptorSetLayout) x(vkCreateFence)      \
	            x(vkCreateSemaphore) x(vkCreatePipelineCache) x(vkCreatePipelineLayout) x(vkCreateQueryPool)           \
	                x(vkCreateShaderModule) x(vkDeviceWaitIdle) x(vkEndCommandBuffer) x(vkGetFenceStatus)              \
	                    x(vkGetPipelineCacheData) x(vkGetQueryPoolResults) x(vkInvalidateMappedMemoryRanges)           \
	                        x(vkMapMemory) x(vkQueueSubmit2) x(vkResetCommandPool) x(vkResetFences) x(vkWaitForFences) \
	                            x(vkWaitSemaphores)
enum class Call {
#define ID(name) name,
	CALLS(ID)
#undef ID
	    vkCreateDevice
};

VkResult create_wrong_module(PFN_vkCreateShaderModule real, VkDevice device, const VkShaderModuleCreateInfo* info,
                             const VkAllocationCallbacks* callbacks, VkShaderModule* out) {
	constexpr uint32_t kHeader = 5, kExtInst = 12, kFAdd = 129, kFSub = 131; // words; opcodes of SPIR-V
	constexpr uint32_t kClamp = 43, kFma = 50;                               // of GLSL.std.450, three operands each
	constexpr uint32_t kPackUnorm = 57, kPackHalf = 58, kUnpackUnorm = 61, kUnpackHalf = 62; // of two numbers
	std::vector<uint32_t> code(info->pCode, info->pCode + info->codeSize / 4);
	for (size_t at = kHeader; at < code.size() && code[at] >> 16; at += code[at] >> 16)
		if (const uint32_t op = code[at] & 0xffff; op == kFAdd || op == kFSub)
			code[at] += kFAdd + kFSub - 2 * op;
		else if (op == kExtInst && at + 4 < code.size())
			for (const auto& [right, wrong] :
			     {std::pair(kFma, kClamp), std::pair(kPackHalf, kPackUnorm), std::pair(kUnpackHalf, kUnpackUnorm)})
				if (code[at + 4] == right) {
					code[at + 4] = wrong;
					break;
				}
	VkShaderModuleCreateInfo changed = *info;
	changed.pCode = code.data();
	return real(device, &changed, callbacks, out);
}

template <Call id, class F> struct Wrapped; // one wrapper per function, which calls the device's own function
template <Call id, class... A> struct Wrapped<id, VkResult(VKAPI_PTR*)(A...)> {
	static inline VkResult(VKAPI_PTR* real)(A...) = nullptr;
	static inline const char* name = "";
	static VKAPI_ATTR VkResult VKAPI_CALL call(A... a) {
		const bool bad = fails(name);
		constexpr bool waits =
		    id == Call::vkWaitForFences || id == Call::vkWaitSemaphores || id == Call::vkDeviceWaitIdle;
		if (bad && !waits) return faults.result;
		if constexpr (id == Call::vkCreateShaderModule)
			if (faults.calls[name] == faults.miscompiled) return create_wrong_module(real, a...);
		const VkResult r = real(a...);
		if (id == Call::vkAllocateMemory && r == VK_SUCCESS) ++faults.live_memory;
		return bad ? faults.result : r;
	}
};
template <Call id, class F> void wrap(const char* asked, const char* name, PFN_vkVoidFunction& f) {
	if (std::strcmp(asked, name) != 0 || !f) return;
	Wrapped<id, F>::real = reinterpret_cast<F>(f);
	Wrapped<id, F>::name = name;
	f = reinterpret_cast<PFN_vkVoidFunction>(&Wrapped<id, F>::call);
}

PFN_vkFreeMemory real_free = nullptr;
VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice d, VkDeviceMemory m, const VkAllocationCallbacks* c) {
	if (m) --faults.live_memory;
	real_free(d, m, c);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char* name) {
	PFN_vkVoidFunction f = real_device_proc(device, name);
	if (f && !std::strcmp(name, "vkFreeMemory")) {
		real_free = reinterpret_cast<PFN_vkFreeMemory>(f);
		return reinterpret_cast<PFN_vkVoidFunction>(&free_memory);
	}
#define WRAP(x) wrap<Call::x, PFN_##x>(name, #x, f);
	CALLS(WRAP)
#undef WRAP
	return f;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char* name) {
	PFN_vkVoidFunction f = real_instance_proc(instance, name);
	if (f && !std::strcmp(name, "vkGetDeviceProcAddr")) {
		real_device_proc = reinterpret_cast<PFN_vkGetDeviceProcAddr>(f);
		return reinterpret_cast<PFN_vkVoidFunction>(&device_proc);
	}
	wrap<Call::vkCreateDevice, PFN_vkCreateDevice>(name, "vkCreateDevice", f);
	return f;
}

} // namespace

VulkanFaults& vulkan_faults() {
	if (!real_instance_proc) {
		if (!vk::load_loader().empty()) fail(Code::NotFound, "no Vulkan loader");
		real_instance_proc = vkGetInstanceProcAddr; // volk gets all others from it, once per instance and device
		vkGetInstanceProcAddr = instance_proc;
	}
	return faults;
}

} // namespace kvrun
