// Lists and opens Vulkan devices.
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/vulkan_backend.h"

namespace kvrun::vk {

std::vector<DeviceReport> list_vulkan() {
	std::vector<DeviceReport> out;
	try {
		Instance instance;
		for (Candidate& c : candidates(instance)) out.push_back(std::move(c.report));
	} catch (const Error& e) {
		if (e.code == Code::Invalid) throw;
		DeviceReport none;
		none.backend = "vulkan";
		none.refused = e.what();
		out.push_back(std::move(none));
	}
	return out;
}

std::unique_ptr<Backend> open_vulkan(size_t index) {
	auto instance = std::make_unique<Instance>();
	const std::vector<Candidate> all = candidates(*instance);
	if (index >= all.size()) fail(Code::Device, "there is no Vulkan device {} any more", index);
	const Candidate& c = all[index];
	if (!c.report.refused.empty()) fail(Code::Device, "{}: {}", c.report.info.name, c.report.refused);
	return std::make_unique<VulkanBackend>(std::move(instance), c);
}

} // namespace kvrun::vk
