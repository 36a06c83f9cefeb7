// Statistics of every kernel from a device's compiler: registers, spills, shared memory, code size.
#include "backends/vulkan/kernel_uses.h"
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/pipeline_statistics.h"
#include "backends/vulkan/vulkan_backend.h"
#include <chrono>

namespace kvrun::vk {

std::vector<KernelReport> compile_kernels(std::unique_ptr<Instance> instance, const Candidate& c,
                                          const BackendOptions& o, const UseFilter& wanted, bool assembly) {
	Device dev(std::move(instance), c, /*for_statistics=*/true);
	Kernels kernels(dev, VK_NULL_HANDLE, o.shaders);
	VkPipelineCreateFlags captures = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
	if (assembly) captures |= VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
	std::vector<KernelReport> out;
	for (const KernelUse& u : kernel_uses(dev.caps())) {
		const std::string name = kernel_blobs()[size_t(u.kernel)].name;
		if (wanted && !wanted(name, u.what)) continue;
		KernelReport& r = out.emplace_back();
		r.kernel = name;
		r.use = u.what;
		const auto start = std::chrono::steady_clock::now();
		try {
			const bool capture = dev.caps().executable_properties;
			const Pipeline& p = kernels.get(u.kernel, u.spec, capture ? captures : 0);
			r.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
			if (capture) read_statistics(dev, p.handle, r);
			if (capture && assembly) r.assembly = read_assembly(dev, p.handle);
			r.lanes = p.subgroup;
			if (!r.shared_bytes) r.shared_bytes = p.footprint.shared_bytes;
		} catch (const Error& e) { r.error = e.what(); }
	}
	dev.instance().messages().take();
	return out;
}

} // namespace kvrun::vk
