// Frames of the window by Vulkan: device and swapchain, with the helpers of Dear ImGui's Vulkan back end.
#include "tools/desktop/gui/vulkan_frames.h"
#include "tools/desktop/gui/vulkan_calls.h"
#include <SDL.h>
#include <SDL_vulkan.h>

namespace kvrun::desktop {
namespace {

constexpr uint32_t kMinImages = 2;

int rank_of(VkPhysicalDeviceType t) {
	switch (t) {
	case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return 4;
	case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return 3;
	case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return 2;
	default: return 1;
	}
}

template <class T, class F> std::vector<T> listed(F&& call) {
	uint32_t n = 0;
	call(&n, nullptr);
	std::vector<T> out(n);
	call(&n, out.data());
	out.resize(n);
	return out;
}

} // namespace

VulkanFrames::VulkanFrames(SDL_Window* sdl) {
	unsigned n = 0;
	if (!SDL_Vulkan_GetInstanceExtensions(sdl, &n, nullptr)) fail_chat(KVRUN_EDEVICE, "{}", SDL_GetError());
	std::vector<const char*> extensions(n);
	SDL_Vulkan_GetInstanceExtensions(sdl, &n, extensions.data());
	VkInstanceCreateInfo info{};
	info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
	info.enabledExtensionCount = n;
	info.ppEnabledExtensionNames = extensions.data();
	check_vk(vkCreateInstance(&info, nullptr, &instance_));
	if (!SDL_Vulkan_CreateSurface(sdl, instance_, &surface_)) fail_chat(KVRUN_EDEVICE, "{}", SDL_GetError());
	choose_device();
	open_device();

	window_ = std::make_unique<ImGui_ImplVulkanH_Window>();
	window_->Surface = surface_;
	window_->ClearEnable = true;
	const VkFormat formats[] = {VK_FORMAT_B8G8R8A8_UNORM, VK_FORMAT_R8G8B8A8_UNORM};
	window_->SurfaceFormat =
	    ImGui_ImplVulkanH_SelectSurfaceFormat(gpu_, surface_, formats, 2, VK_COLORSPACE_SRGB_NONLINEAR_KHR);
	const VkPresentModeKHR modes[] = {VK_PRESENT_MODE_MAILBOX_KHR, VK_PRESENT_MODE_FIFO_KHR};
	window_->PresentMode = ImGui_ImplVulkanH_SelectPresentMode(gpu_, surface_, modes, 2);
	int width = 0, height = 0;
	SDL_Vulkan_GetDrawableSize(sdl, &width, &height);
	ImGui_ImplVulkanH_CreateOrResizeWindow(instance_, gpu_, device_, window_.get(), family_, nullptr, width, height,
	                                       kMinImages);
	start_backend();
}

VulkanFrames::~VulkanFrames() {
	if (device_) vkDeviceWaitIdle(device_);
	if (backend_started_) ImGui_ImplVulkan_Shutdown();
	if (window_) ImGui_ImplVulkanH_DestroyWindow(instance_, device_, window_.get(), nullptr); // the surface, too
	if (pool_) vkDestroyDescriptorPool(device_, pool_, nullptr);
	if (device_) vkDestroyDevice(device_, nullptr);
	if (instance_) vkDestroyInstance(instance_, nullptr);
}

void VulkanFrames::choose_device() {
	int best = 0;
	for (VkPhysicalDevice gpu : listed<VkPhysicalDevice>(
	         [&](uint32_t*n, VkPhysicalDevice*to) { vkEnumeratePhysicalDevices(instance_, n, to); })) {
		VkPhysicalDeviceProperties p;
		vkGetPhysicalDeviceProperties(gpu, &p);
		const auto families = listed<VkQueueFamilyProperties>(
		    [&](uint32_t* n, VkQueueFamilyProperties* to) { vkGetPhysicalDeviceQueueFamilyProperties(gpu, n, to); });
		for (uint32_t f = 0; f < families.size(); ++f) {
			VkBool32 shows = VK_FALSE;
			vkGetPhysicalDeviceSurfaceSupportKHR(gpu, f, surface_, &shows);
			if (!shows || !(families[f].queueFlags & VK_QUEUE_GRAPHICS_BIT) || rank_of(p.deviceType) <= best) continue;
			best = rank_of(p.deviceType);
			gpu_ = gpu, family_ = f;
			device_name_ = p.deviceName;
		}
	}
	if (!best)
		fail_chat(KVRUN_EDEVICE, "no Vulkan device can draw this window; is a driver installed (mesa-vulkan-drivers)?");
}

void VulkanFrames::open_device() {
	const float priority = 1;
	VkDeviceQueueCreateInfo queue{};
	queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
	queue.queueFamilyIndex = family_;
	queue.queueCount = 1;
	queue.pQueuePriorities = &priority;
	const char* swapchain = VK_KHR_SWAPCHAIN_EXTENSION_NAME;
	VkDeviceCreateInfo info{};
	info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
	info.queueCreateInfoCount = 1;
	info.pQueueCreateInfos = &queue;
	info.enabledExtensionCount = 1;
	info.ppEnabledExtensionNames = &swapchain;
	check_vk(vkCreateDevice(gpu_, &info, nullptr, &device_));
	vkGetDeviceQueue(device_, family_, 0, &queue_);
	const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, 16};
	VkDescriptorPoolCreateInfo pool{};
	pool.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
	pool.flags = VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT;
	pool.maxSets = 16;
	pool.poolSizeCount = 1;
	pool.pPoolSizes = &size;
	check_vk(vkCreateDescriptorPool(device_, &pool, nullptr, &pool_));
}

void VulkanFrames::start_backend() {
	ImGui_ImplVulkan_InitInfo info{};
	info.Instance = instance_;
	info.PhysicalDevice = gpu_;
	info.Device = device_;
	info.QueueFamily = family_;
	info.Queue = queue_;
	info.DescriptorPool = pool_;
	info.MinImageCount = kMinImages;
	info.ImageCount = window_->ImageCount;
	info.CheckVkResultFn = check_vk;
	ImGui_ImplVulkan_Init(&info, window_->RenderPass);
	backend_started_ = true;
}

void VulkanFrames::upload_fonts() {
	check_vk(vkDeviceWaitIdle(device_));
	ImGui_ImplVulkan_Shutdown(); // the back end keeps one font texture from its start to its end
	start_backend();
#if IMGUI_VERSION_NUM < 19000 // newer ones upload by themselves
	const ImGui_ImplVulkanH_Frame& f = window_->Frames[window_->FrameIndex];
	check_vk(vkResetCommandPool(device_, f.CommandPool, 0));
	begin_commands(f.CommandBuffer);
	ImGui_ImplVulkan_CreateFontsTexture(f.CommandBuffer);
	check_vk(vkEndCommandBuffer(f.CommandBuffer));
	const VkSubmitInfo submit = submission(f.CommandBuffer);
	check_vk(vkQueueSubmit(queue_, 1, &submit, VK_NULL_HANDLE));
	check_vk(vkDeviceWaitIdle(device_));
	ImGui_ImplVulkan_DestroyFontUploadObjects();
#endif
}

void VulkanFrames::rebuild(int width, int height) {
	check_vk(vkDeviceWaitIdle(device_));
	ImGui_ImplVulkan_SetMinImageCount(kMinImages);
	ImGui_ImplVulkanH_CreateOrResizeWindow(instance_, gpu_, device_, window_.get(), family_, nullptr, width, height,
	                                       kMinImages);
	window_->FrameIndex = 0;
	stale_ = false;
}

void VulkanFrames::record(ImDrawData* data) {
	const ImGui_ImplVulkanH_Frame& f = window_->Frames[window_->FrameIndex];
	check_vk(vkWaitForFences(device_, 1, &f.Fence, VK_TRUE, UINT64_MAX));
	check_vk(vkResetFences(device_, 1, &f.Fence));
	check_vk(vkResetCommandPool(device_, f.CommandPool, 0));
	begin_commands(f.CommandBuffer);
	draw_frame(f.CommandBuffer, window_->RenderPass, f.Framebuffer, *window_, data);
	check_vk(vkEndCommandBuffer(f.CommandBuffer));
}

bool VulkanFrames::draw(ImDrawData* data, int width, int height) {
	if (width <= 0 || height <= 0) return false; // minimised
	if (stale_ || width != window_->Width || height != window_->Height) rebuild(width, height);
	const ImGui_ImplVulkanH_FrameSemaphores& s = window_->FrameSemaphores[window_->SemaphoreIndex];
	const VkResult got = vkAcquireNextImageKHR(device_, window_->Swapchain, UINT64_MAX, s.ImageAcquiredSemaphore,
	                                           VK_NULL_HANDLE, &window_->FrameIndex);
	if (got == VK_ERROR_OUT_OF_DATE_KHR) return stale_ = true, false;
	check_vk(got);
	record(data);
	const ImGui_ImplVulkanH_Frame& f = window_->Frames[window_->FrameIndex];
	const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT;
	VkSubmitInfo submit = submission(f.CommandBuffer);
	submit.waitSemaphoreCount = 1;
	submit.pWaitSemaphores = &s.ImageAcquiredSemaphore;
	submit.pWaitDstStageMask = &stage;
	submit.signalSemaphoreCount = 1;
	submit.pSignalSemaphores = &s.RenderCompleteSemaphore;
	check_vk(vkQueueSubmit(queue_, 1, &submit, f.Fence));
	VkPresentInfoKHR present{};
	present.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR;
	present.waitSemaphoreCount = 1;
	present.pWaitSemaphores = &s.RenderCompleteSemaphore;
	present.swapchainCount = 1;
	present.pSwapchains = &window_->Swapchain;
	present.pImageIndices = &window_->FrameIndex;
	const VkResult shown = vkQueuePresentKHR(queue_, &present);
	window_->SemaphoreIndex = (window_->SemaphoreIndex + 1) % window_->ImageCount;
	stale_ = shown == VK_ERROR_OUT_OF_DATE_KHR || shown == VK_SUBOPTIMAL_KHR || got == VK_SUBOPTIMAL_KHR;
	if (!stale_) check_vk(shown);
	return !stale_;
}

} // namespace kvrun::desktop
