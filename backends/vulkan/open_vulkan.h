// What open.cpp asks of the Vulkan backend, without Vulkan's headers.
#pragma once
#include "backends/backend.h"

namespace kvrun::vk {

// The Vulkan devices of this machine, best first, refused ones with the reason; a missing loader or driver is one
// refused report. Drivers are first tried in a child process: one that crashes is a refusal, not the end of this one.
class VulkanDevices {
 public:
	VulkanDevices();
	~VulkanDevices();
	VulkanDevices(const VulkanDevices&) = delete;
	const std::vector<DeviceReport>& reports() const { return reports_; }
	// Opens entry `index`. Throws Error{Device} with the reason when it is refused. Once per object.
	std::unique_ptr<Backend> open(size_t index);

 private:
	struct Found; // instance and candidates
	std::unique_ptr<Found> found_;
	std::vector<DeviceReport> reports_;
};

} // namespace kvrun::vk
