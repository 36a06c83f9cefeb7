// Frames of the window by Vulkan: device and swapchain, with the helpers of Dear ImGui's Vulkan back end.
#pragma once
#include <backends/imgui_impl_vulkan.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct SDL_Window;

namespace kvrun::desktop {

struct Picture {
	int width = 0, height = 0;
	std::vector<uint8_t> rgb; // (height, width, 3)
};

class VulkanFrames {
 public:
	// An instance, the best GPU that shows this window, a swapchain. Throws ChatError{KVRUN_EDEVICE}.
	explicit VulkanFrames(SDL_Window*);
	~VulkanFrames();
	VulkanFrames(const VulkanFrames&) = delete;

	void upload_fonts(); // of the current ImGui context, again after a change
	// And presents; the size of the window in pixels. False: it has to be drawn again.
	bool draw(ImDrawData*, int width, int height);
	Picture capture(ImDrawData*); // the same picture, drawn beside the window
	const std::string& device() const { return device_name_; }

 private:
	void choose_device();
	void open_device();
	void start_backend();
	void record(ImDrawData*);
	void rebuild(int width, int height);

	VkInstance instance_ = {};
	VkPhysicalDevice gpu_ = {};
	VkDevice device_ = {};
	uint32_t family_ = 0; // of queues
	VkQueue queue_ = {};
	VkDescriptorPool pool_ = {};
	VkSurfaceKHR surface_ = {};
	std::unique_ptr<ImGui_ImplVulkanH_Window> window_;
	bool backend_started_ = false, stale_ = false;
	std::string device_name_;
};

} // namespace kvrun::desktop
