// What a device's compiler makes of every kernel: registers, spills, shared memory, code size.
#include "backends/vulkan/kernel_uses.h"
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/vulkan_backend.h"
#include <chrono>
#include <cstring>

namespace kvrun::vk {
namespace {

uint64_t number(const VkPipelineExecutableStatisticKHR& s) {
	switch (s.format) {
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return s.value.b32;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return uint64_t(std::max<int64_t>(s.value.i64, 0));
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: return s.value.u64;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR: return uint64_t(std::max(s.value.f64, 0.0));
	default: return 0;
	}
}

// Names are the drivers' own; these are RADV's, ANV's and NVIDIA's.
void add_statistic(KernelReport& r, const char* name, uint64_t v) {
	auto is = [&](std::initializer_list<const char*> names) {
		for (const char* n : names)
			if (!std::strcmp(name, n)) return true;
		return false;
	};
	if (is({"VGPRs", "Register Count", "GRF registers"}))
		r.vector_registers = v;
	else if (is({"SGPRs"}))
		r.scalar_registers = v;
	else if (is({"Spilled SGPRs", "Spilled VGPRs", "Spill count", "Local Memory Size"}))
		r.spills += v;
	else if (is({"Scratch size", "Scratch Memory Size"}))
		r.scratch_bytes = v;
	else if (is({"LDS size"}))
		r.shared_bytes = v;
	else if (is({"Code size", "Binary Size"}))
		r.code_bytes = v;
}

void read_statistics(Device& dev, VkPipeline pipeline, KernelReport& r) {
	VkPipelineInfoKHR info = make<VkPipelineInfoKHR>(VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR);
	info.pipeline = pipeline;
	uint32_t n = 0;
	VK_TRY(dev.fn.vkGetPipelineExecutablePropertiesKHR(dev.handle(), &info, &n, nullptr));
	for (uint32_t e = 0; e < n; ++e) {
		VkPipelineExecutableInfoKHR which =
		    make<VkPipelineExecutableInfoKHR>(VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR);
		which.pipeline = pipeline;
		which.executableIndex = e;
		uint32_t m = 0;
		VK_TRY(dev.fn.vkGetPipelineExecutableStatisticsKHR(dev.handle(), &which, &m, nullptr));
		std::vector<VkPipelineExecutableStatisticKHR> all(
		    m, make<VkPipelineExecutableStatisticKHR>(VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR));
		VK_TRY(dev.fn.vkGetPipelineExecutableStatisticsKHR(dev.handle(), &which, &m, all.data()));
		for (const VkPipelineExecutableStatisticKHR& s : all) add_statistic(r, s.name, number(s));
		r.measured = m > 0;
	}
}

} // namespace

std::vector<KernelReport> compile_kernels(std::unique_ptr<Instance> instance, const Candidate& c,
                                          const BackendOptions& o) {
	Device dev(std::move(instance), c, /*for_statistics=*/true);
	Kernels kernels(dev, VK_NULL_HANDLE, o.shaders);
	std::vector<KernelReport> out;
	for (const KernelUse& u : kernel_uses(dev.caps())) {
		KernelReport& r = out.emplace_back();
		r.kernel = kernel_blobs()[size_t(u.kernel)].name;
		r.use = u.what;
		const auto start = std::chrono::steady_clock::now();
		try {
			const bool capture = dev.caps().executable_properties;
			const Pipeline& p = kernels.get(u.kernel, u.spec, capture);
			r.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
			r.shared_bytes = p.footprint.shared_bytes;
			if (capture) read_statistics(dev, p.handle, r);
		} catch (const Error& e) { r.error = e.what(); }
	}
	dev.instance().messages().take();
	return out;
}

} // namespace kvrun::vk
