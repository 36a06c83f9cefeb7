// Kernel registry: SPIR-V of every kernel, and one pipeline per (kernel, specialization constants), made on first use.
#include "backends/vulkan/kernels.h"
#include "backends/vulkan/pipeline_statistics.h"
#include "engine/core/log.h"
#include "engine/core/regular_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "shared/spec.h"
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

namespace kvrun::vk {
namespace {

constexpr uint64_t kLargestShader = uint64_t(16) << 20; // bytes; real ones have a few thousand

std::vector<uint32_t> read_words(const std::filesystem::path& path) {
	const RegularFile file(path.string(), "name a folder of .spv files");
	if (file.bytes() == 0 || file.bytes() % 4 || file.bytes() > kLargestShader)
		fail(Code::Format, "{}: {} bytes are no SPIR-V", file.name(), file.bytes());
	std::vector<uint32_t> words(size_t(file.bytes()) / 4);
	file.read_at(0, std::as_writable_bytes(std::span(words)));
	return words;
}

bool same(std::span<const SpecValue> a, std::span<const SpecValue> b) {
	if (a.size() != b.size()) return false;
	for (size_t i = 0; i < a.size(); ++i)
		if (a[i].id != b[i].id || a[i].value != b[i].value) return false;
	return true;
}

std::vector<SpecValue> with_subgroup(std::vector<SpecValue> spec, uint32_t lanes) {
	std::erase_if(spec, [](const SpecValue& s) { return s.id == SPEC_SUBGROUP; });
	spec.push_back({SPEC_SUBGROUP, lanes});
	return spec;
}

} // namespace

Kernels::Kernels(Device& dev, VkPipelineCache cache, const std::string& folder) : dev_(dev), cache_(cache) {
	std::error_code ec;
	if (!folder.empty() && !std::filesystem::is_directory(sys::path_of(folder), ec))
		fail(Code::NotFound, "{}: no folder of .spv files; check KVRUN_SHADERS", one_line(folder));
	for (const KernelBlob& b : kernel_blobs()) {
		Entry& e = entries_.emplace_back();
		const bool fallback = !dev.caps().subgroup_ops && b.no_subgroup.data() != b.spirv.data();
		e.name = std::string(b.name) + (fallback ? "_nosubgroup" : "");
		e.spirv = fallback ? b.no_subgroup : b.spirv;
		e.in_bounds = b.in_bounds;
		if (folder.empty()) continue;
		const std::filesystem::path path = sys::path_of(folder) / (e.name + ".spv");
		if (!std::filesystem::exists(path, ec)) continue;
		e.from_disk = read_words(path);
		e.spirv = e.from_disk;
		e.in_bounds = false; // files were not validated
	}
}

Kernels::~Kernels() {
	if (dev_.abandoned()) return;
	for (Entry& e : entries_)
		for (auto& p : e.pipelines) {
			dev_.fn.vkDestroyPipeline(dev_.handle(), p->handle, nullptr);
			dev_.fn.vkDestroyPipeline(dev_.handle(), p->with_base, nullptr);
		}
	for (auto& [key, l] : layouts_) {
		dev_.fn.vkDestroyPipelineLayout(dev_.handle(), l.pipeline, nullptr);
		dev_.fn.vkDestroyDescriptorSetLayout(dev_.handle(), l.set, nullptr);
	}
}

Kernels::Entry& Kernels::entry(Kernel k) {
	KV_ASSERT(size_t(k) < entries_.size());
	Entry& e = entries_[size_t(k)];
	if (!e.reflected) {
		e.reflection = reflect(e.spirv, e.name);
		e.reflected = true;
	}
	return e;
}

const Kernels::Layout& Kernels::layout(const Reflection& r) {
	const uint32_t n = uint32_t(r.bindings.size());
	uint32_t texels = 0;
	for (uint32_t i = 0; i < n; ++i) texels |= uint32_t(r.bindings[i].texel) << i;
	Layout& l = layouts_[{n, texels}];
	if (l.pipeline) return l;
	VkDescriptorSetLayoutBinding bindings[kMaxBindings] = {};
	for (uint32_t i = 0; i < n; ++i) bindings[i] = {i, r.bindings[i].type(), 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
	VkDescriptorSetLayoutCreateInfo set =
	    make<VkDescriptorSetLayoutCreateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO);
	if (dev_.caps().push_descriptor) set.flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR;
	set.bindingCount = n;
	set.pBindings = bindings;
	if (!l.set) VK_TRY(dev_.fn.vkCreateDescriptorSetLayout(dev_.handle(), &set, nullptr, &l.set));
	const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, 128};
	VkPipelineLayoutCreateInfo info = make<VkPipelineLayoutCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO);
	info.setLayoutCount = 1;
	info.pSetLayouts = &l.set;
	info.pushConstantRangeCount = 1;
	info.pPushConstantRanges = &range;
	VK_TRY(dev_.fn.vkCreatePipelineLayout(dev_.handle(), &info, nullptr, &l.pipeline));
	return l;
}

void Kernels::check(const Entry& e, const Footprint& f) const {
	const Caps& c = dev_.caps();
	const uint64_t threads = uint64_t(f.local[0]) * f.local[1] * f.local[2];
	auto refuse = [&](const char* what, uint64_t needs, const char* limit, uint64_t has) {
		fail(Code::Unsupported, "kernel {} needs {} {}, this device has {} ({})", e.name, needs, what, has, limit);
	};
	if (threads > c.workgroup)
		refuse("invocations in a workgroup", threads, "maxComputeWorkGroupInvocations", c.workgroup);
	for (int i = 0; i < 3; ++i)
		if (f.local[i] > c.workgroup_size[i])
			refuse("invocations along one dimension", f.local[i], "maxComputeWorkGroupSize", c.workgroup_size[i]);
	if (f.shared_bytes > c.shared_bytes)
		refuse("bytes of shared memory", f.shared_bytes, "maxComputeSharedMemorySize", c.shared_bytes);
	if (e.reflection.bindings.size() > c.ssbo)
		refuse("storage buffers", e.reflection.bindings.size(), "maxPerStageDescriptorStorageBuffers", c.ssbo);
	if (e.reflection.push_bytes > c.push_bytes)
		refuse("bytes of push constants", e.reflection.push_bytes, "maxPushConstantsSize", c.push_bytes);
}

VkPipeline Kernels::create(const Entry& e, const Pipeline& p, VkPipelineCreateFlags flags) {
	const auto start = std::chrono::steady_clock::now();
	const Caps& c = dev_.caps();
	VkShaderModuleCreateInfo module_info = make<VkShaderModuleCreateInfo>(VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO);
	module_info.codeSize = e.spirv.size_bytes();
	module_info.pCode = e.spirv.data();
	VkShaderModule module = VK_NULL_HANDLE;
	VK_TRY(dev_.fn.vkCreateShaderModule(dev_.handle(), &module_info, nullptr, &module));

	std::vector<SpecValue> spec = p.spec;
	if (e.reflection.spec_ids >> SPEC_SUBGROUP & 1) spec = with_subgroup(p.spec, p.subgroup);
	std::vector<VkSpecializationMapEntry> map;
	for (uint32_t i = 0; i < spec.size(); ++i)
		map.push_back({spec[i].id, uint32_t(i * sizeof(SpecValue) + offsetof(SpecValue, value)), sizeof(uint32_t)});
	VkSpecializationInfo spec_info{uint32_t(map.size()), map.data(), spec.size() * sizeof(SpecValue), spec.data()};
	VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size =
	    make<VkPipelineShaderStageRequiredSubgroupSizeCreateInfo>(
	        VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO);
	size.requiredSubgroupSize = p.subgroup;

	VkComputePipelineCreateInfo info =
	    make<VkComputePipelineCreateInfo>(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
	info.flags = flags;
	info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
	info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
	info.stage.module = module;
	info.stage.pName = "main";
	info.stage.pSpecializationInfo = &spec_info;
	if (e.reflection.subgroup_ops) { // lanes communicate: only full subgroups of one known size
		if (c.subgroup_pin) info.stage.pNext = &size;
		if (p.footprint.local[0] % p.subgroup == 0)
			info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
	}
	// NVIDIA's hardware does not check bounds, so the compiler adds instructions that take 10 to 35 % of a kernel's
	// cycles (NVK).
	VkPipelineRobustnessCreateInfoEXT unchecked =
	    make<VkPipelineRobustnessCreateInfoEXT>(VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT);
	unchecked.storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;
	if (c.pipeline_robustness && e.in_bounds) info.pNext = &unchecked;
	info.layout = p.layout;
	VkPipeline handle = VK_NULL_HANDLE;
	const VkResult r = dev_.fn.vkCreateComputePipelines(dev_.handle(), cache_, 1, &info, nullptr, &handle);
	dev_.fn.vkDestroyShaderModule(dev_.handle(), module, nullptr);
	if (r != VK_SUCCESS) {
		const bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
		fail(memory ? Code::OutOfMemory : Code::Device, "kernel {}: vkCreateComputePipelines returned {} ({})", e.name,
		     result_name(r), int(r));
	}
	dev_.name(VK_OBJECT_TYPE_PIPELINE, uint64_t(handle), e.name.c_str());
	const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
	compile_ms_ += ms;
	++compiled_;
	log_at(3, "# vulkan: compiled {} in {:.1f} ms", e.name, ms);
	return handle;
}

Pipeline& Kernels::get(Kernel k, std::span<const SpecValue> spec, VkPipelineCreateFlags captures) {
	Entry& e = entry(k);
	for (auto& p : e.pipelines)
		if (same(p->spec, spec)) return *p;
	for (const SpecValue& s : spec)
		if (s.id >= kMaxSpec || !(e.reflection.spec_ids >> s.id & 1))
			fail(Code::Internal, "kernel {} has no specialization constant {}", e.name, s.id);
	auto p = std::make_unique<Pipeline>();
	p->kernel = k;
	p->name = e.name.c_str();
	p->reflection = &e.reflection;
	p->spec.assign(spec.begin(), spec.end());
	const Layout& l = layout(e.reflection);
	p->layout = l.pipeline;
	p->set_layout = l.set;
	const auto chosen = std::ranges::find(p->spec, uint32_t(SPEC_SUBGROUP), &SpecValue::id);
	const bool given = chosen != p->spec.end(); // kernel_choice.cpp used it in its computation
	const bool narrows = dev_.caps().can_narrow() && e.reflection.subgroup_ops && !given;
	const VkPipelineCreateFlags flags = captures | (narrows ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0);
	p->subgroup = given ? chosen->value : dev_.caps().subgroup;
	build(e, *p, flags);
	const auto fits = [&](uint32_t subgroup) {
		const uint32_t* n = p->footprint.local;
		return uint64_t(n[0]) * n[1] * n[2] <= uint64_t(subgroup) * dev_.caps().subgroup_most;
	};
	while (narrows && p->subgroup > dev_.caps().subgroup_min && fits(p->subgroup / 2) && spills(p->handle)) {
		dev_.fn.vkDestroyPipeline(dev_.handle(), std::exchange(p->handle, VK_NULL_HANDLE), nullptr);
		p->subgroup /= 2;
		build(e, *p, flags);
	}
	return *e.pipelines.emplace_back(std::move(p));
}

void Kernels::build(const Entry& e, Pipeline& p, VkPipelineCreateFlags flags) {
	p.footprint = footprint(e.spirv, e.reflection, with_subgroup(p.spec, p.subgroup));
	check(e, p.footprint);
	p.handle = create(e, p, flags);
}

// A driver that reports no numbers counts as without spills.
bool Kernels::spills(VkPipeline pipeline) {
	KernelReport r;
	try {
		read_statistics(dev_, pipeline, r);
	} catch (const Error&) { return false; }
	return r.spilling();
}

VkPipeline Kernels::with_base(Pipeline& p) {
	if (!p.with_base) p.with_base = create(entry(p.kernel), p, VK_PIPELINE_CREATE_DISPATCH_BASE_BIT);
	return p.with_base;
}

} // namespace kvrun::vk
