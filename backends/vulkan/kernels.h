// Kernel registry: SPIR-V of every kernel, and one pipeline per (kernel, specialization constants), made on first use.
#pragma once
#include "backends/vulkan/device.h"
#include "backends/vulkan/spirv.h"
#include "kernel_list.inc"
#include <map>
#include <memory>

namespace kvrun::vk {

struct Groups { // workgroups of a dispatch
	uint32_t x = 1, y = 1, z = 1;
};

struct Pipeline {
	VkPipeline handle = VK_NULL_HANDLE;
	VkPipeline with_base = VK_NULL_HANDLE; // the same for vkCmdDispatchBase; made when a dispatch has to be split
	VkPipelineLayout layout = VK_NULL_HANDLE;
	VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
	const Reflection* reflection = nullptr;
	Kernel kernel{};
	const char* name = "";
	std::vector<SpecValue> spec; // as asked for
	uint32_t subgroup = 0;       // lanes
	Footprint footprint{};
	double pace = 1; // measured time / predicted time, learned by the recorder
};

class Kernels {
 public:
	// shaders: folder with .spv files that replace the embedded ones; empty: none.
	Kernels(Device&, VkPipelineCache, const std::string& shaders = "");
	~Kernels();
	Kernels(const Kernels&) = delete;

	// The pipeline with these constants; compiled at the first call. References stay valid. Throws Error{Unsupported}
	// naming the limit if the device cannot run it. `captures`: flags that keep the compiler's statistics.
	Pipeline& get(Kernel k, std::initializer_list<SpecValue> spec) {
		return get(k, std::span(spec.begin(), spec.size()));
	}
	Pipeline& get(Kernel, std::span<const SpecValue> spec, VkPipelineCreateFlags captures = 0);
	VkPipeline with_base(Pipeline&);
	uint32_t compiled() const { return compiled_; } // pipelines made so far
	double compile_ms() const { return compile_ms_; }

 private:
	struct Entry {
		std::string name;
		std::span<const uint32_t> spirv;
		std::vector<uint32_t> from_disk; // of the folder
		bool in_bounds = false;          // compiled without bounds checks where the driver allows it
		Reflection reflection;
		bool reflected = false;
		std::vector<std::unique_ptr<Pipeline>> pipelines;
	};
	struct Layout { // one per number and kinds of bindings: kernels with equal ones share it
		VkDescriptorSetLayout set = VK_NULL_HANDLE;
		VkPipelineLayout pipeline = VK_NULL_HANDLE;
	};
	Entry& entry(Kernel);
	const Layout& layout(const Reflection&);
	void check(const Entry&, const Footprint&) const;
	void build(const Entry&, Pipeline&, VkPipelineCreateFlags);
	bool spills(VkPipeline);
	VkPipeline create(const Entry&, const Pipeline&, VkPipelineCreateFlags);

	Device& dev_;
	VkPipelineCache cache_;
	std::vector<Entry> entries_;
	std::map<std::pair<size_t, uint32_t>, Layout> layouts_; // by number of bindings, bit mask of texel buffers
	uint32_t compiled_ = 0;
	double compile_ms_ = 0;
};

} // namespace kvrun::vk
