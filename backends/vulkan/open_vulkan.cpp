// Lists and opens Vulkan devices.
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/probe.h"
#include "backends/vulkan/vulkan_backend.h"

namespace kvrun::vk {

struct VulkanDevices::Found {
	std::unique_ptr<Instance> instance;
	std::vector<Candidate> all;
};

namespace {
DeviceReport refused(std::string name, std::string why) {
	DeviceReport r;
	r.backend = "vulkan";
	r.info.name = std::move(name);
	r.refused = std::move(why);
	return r;
}
} // namespace

VulkanDevices::VulkanDevices(const BackendOptions& o) : options_(o) {
	Drivers drivers;
	if (load_loader().empty()) drivers = probe_drivers(o);
	const std::vector<BadDriver>& bad = drivers.bad;
	if (bad.empty() || o.set_driver_files) find_good(bad.empty());
	for (const BadDriver& b : bad)
		reports_.push_back(
		    refused("driver " + b.file, b.why + "; update or remove it, or leave it out of VK_DRIVER_FILES"));
	if (!bad.empty() && !o.set_driver_files && !drivers.good.empty())
		reports_.push_back(
		    refused("", fmt::format("the loader would load a bad driver too; set VK_DRIVER_FILES={}", drivers.good)));
}

void VulkanDevices::find_good(bool all) {
	const BackendOptions& o = options_;
	try {
		found_ = std::make_unique<Found>();
		found_->instance = std::make_unique<Instance>(o.validate);
		found_->all = candidates(*found_->instance, o);
		for (const Candidate& c : found_->all) reports_.push_back(c.report);
		if (reports_.empty() && all)
			reports_.push_back(refused("", "the Vulkan drivers found no device; `vulkaninfo --summary` (package "
			                               "vulkan-tools) says what they saw"));
	} catch (const Error& e) {
		if (e.code == Code::Invalid) throw; // an option is invalid
		if (all || e.code != Code::Device) reports_.push_back(refused("", e.what()));
	}
}

VulkanDevices::~VulkanDevices() = default;

std::unique_ptr<Backend> VulkanDevices::open(size_t index) {
	KV_ASSERT(index < reports_.size());
	const DeviceReport& r = reports_[index];
	if (!r.refused.empty()) fail(Code::Device, "{}{}{}", r.info.name, r.info.name.empty() ? "" : ": ", r.refused);
	KV_ASSERT(found_ && found_->instance && index < found_->all.size());
	return std::make_unique<VulkanBackend>(std::move(found_->instance), found_->all[index], options_);
}

std::vector<KernelReport> VulkanDevices::compile_all(size_t index, const UseFilter& wanted, bool assembly) const {
	KV_ASSERT(found_ && index < found_->all.size());
	auto instance = std::make_unique<Instance>(options_.validate);
	const std::vector<Candidate> again = candidates(*instance, options_); // handles belong to an instance
	KV_ASSERT(index < again.size());
	const Caps& c = again[index].caps;
	if (c.api < VK_API_VERSION_1_3)
		fail(Code::Device, "{}: {}", again[index].report.info.name, again[index].report.refused);
	return compile_kernels(std::move(instance), again[index], options_, wanted, assembly);
}

std::unique_ptr<DeviceSet> find_devices(const BackendOptions& o) { return std::make_unique<VulkanDevices>(o); }

} // namespace kvrun::vk
