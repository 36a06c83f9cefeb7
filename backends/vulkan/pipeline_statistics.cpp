// Statistics of a pipeline from a driver's compiler, by the names that drivers use.
#include "backends/vulkan/pipeline_statistics.h"
#include "engine/core/log.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

struct Statistic {
	std::string_view name; // the driver's name for it
	uint64_t KernelReport::*field;
};
// A driver's name appears once; several of its statistics may add up in one field.
constexpr Statistic kStatistics[] = {
    // RADV (AMD)
    {"VGPRs", &KernelReport::vector_registers},
    {"SGPRs", &KernelReport::scalar_registers},
    {"Spilled VGPRs", &KernelReport::spills},
    {"Spilled SGPRs", &KernelReport::spills},
    {"Scratch size", &KernelReport::scratch_bytes},
    {"LDS size", &KernelReport::shared_bytes},
    {"Code size", &KernelReport::code_bytes},      // all of Mesa
    {"Instructions", &KernelReport::instructions}, // and ANV
    {"VALU", &KernelReport::vector_instructions},
    {"Inverse Throughput", &KernelReport::cycles},
    {"Subgroups per SIMD", &KernelReport::waves},
    // ANV (Intel)
    {"Max live registers", &KernelReport::vector_registers},
    {"Spills", &KernelReport::spills},
    {"Fills", &KernelReport::fills},
    {"Scratch Memory Size", &KernelReport::scratch_bytes},
    {"Workgroup Memory Size", &KernelReport::shared_bytes},
    {"Cycles", &KernelReport::cycles},
    // NVK (NVIDIA)
    {"Number of GPRs", &KernelReport::vector_registers},
    {"Spills to memory", &KernelReport::spills},
    {"Fills from memory", &KernelReport::fills},
    {"SLM size", &KernelReport::scratch_bytes},
    {"Instruction count", &KernelReport::instructions},
    {"Static cycle count", &KernelReport::cycles},
    {"Max warps/SM", &KernelReport::waves},
    // NVIDIA's own driver
    {"Register Count", &KernelReport::vector_registers},
    {"Local Memory Size", &KernelReport::scratch_bytes},
    {"Shared Memory Size", &KernelReport::shared_bytes},
    {"Binary Size", &KernelReport::code_bytes},
};
// Known, but not stored in any field.
constexpr std::string_view kOthers[] = {"Copies",
                                        "Branches",
                                        "Latency",
                                        "VMEM Clause",
                                        "SMEM Clause",
                                        "Pre-Sched SGPRs",
                                        "Pre-Sched VGPRs",
                                        "SALU",
                                        "VMEM",
                                        "SMEM",
                                        "VOPD",
                                        "Combined inputs",
                                        "Combined outputs",
                                        "Hash",
                                        "Driver pipeline hash",
                                        "SENDs",
                                        "Loops",
                                        "GRF registers",
                                        "Max dispatch width",
                                        "Non SSA regs after NIR",
                                        "Source hash",
                                        "Spills to reg",
                                        "Fills from reg",
                                        "Stack Size",
                                        "Threads Per CTA"};

uint64_t number(const VkPipelineExecutableStatisticKHR& s) {
	switch (s.format) {
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return s.value.b32;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return uint64_t(std::max<int64_t>(s.value.i64, 0));
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: return s.value.u64;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR: return uint64_t(std::max(s.value.f64, 0.0));
	default: return 0;
	}
}

} // namespace

bool add_statistic(KernelReport& r, std::string_view name, uint64_t value) {
	for (const Statistic& s : kStatistics)
		if (s.name == name) return r.*s.field += value, true;
	return std::ranges::count(kOthers, name) > 0;
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
		for (const VkPipelineExecutableStatisticKHR& s : all)
			if (!add_statistic(r, s.name, number(s)))
				warn_once(fmt::format("the driver's statistic '{}' is not known to kvrun; it is left out", s.name));
		r.measured = m > 0;
	}
}

std::string read_assembly(Device& dev, VkPipeline pipeline) {
	VkPipelineExecutableInfoKHR which =
	    make<VkPipelineExecutableInfoKHR>(VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR);
	which.pipeline = pipeline;
	uint32_t n = 0;
	VK_TRY(dev.fn.vkGetPipelineExecutableInternalRepresentationsKHR(dev.handle(), &which, &n, nullptr));
	std::vector<VkPipelineExecutableInternalRepresentationKHR> all(
	    n, make<VkPipelineExecutableInternalRepresentationKHR>(
	           VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR));
	VK_TRY(dev.fn.vkGetPipelineExecutableInternalRepresentationsKHR(dev.handle(), &which, &n, all.data()));
	std::vector<std::string> texts;
	for (auto& r : all) {
		texts.emplace_back(r.dataSize, '\0');
		r.pData = texts.back().data();
	}
	VK_TRY(dev.fn.vkGetPipelineExecutableInternalRepresentationsKHR(dev.handle(), &which, &n, all.data()));
	for (size_t i = all.size(); i-- > 0;) // the last one that is assembly; earlier ones are intermediate
		if (all[i].isText && std::string_view(all[i].name).find("ssembly") != std::string_view::npos)
			return texts[i].c_str();
	return {};
}

} // namespace kvrun::vk
