// A picture of the window, drawn into an image beside it and read back.
#include "tools/desktop/gui/vulkan_calls.h"
#include "tools/desktop/gui/vulkan_frames.h"

namespace kvrun::desktop {
namespace {

// An image with all that is drawn and copied through; freed together.
struct Target {
	VkDevice device;
	VkImage image = {};
	VkDeviceMemory memory = {}, host = {};
	VkImageView view = {};
	VkRenderPass pass = {};
	VkFramebuffer framebuffer = {};
	VkBuffer buffer = {};
	VkCommandPool pool = {};
	VkCommandBuffer commands = {};

	explicit Target(VkDevice d) : device(d) {}
	Target(const Target&) = delete;
	~Target() {
		vkDestroyCommandPool(device, pool, nullptr);
		vkDestroyFramebuffer(device, framebuffer, nullptr);
		vkDestroyRenderPass(device, pass, nullptr);
		vkDestroyImageView(device, view, nullptr);
		vkDestroyImage(device, image, nullptr);
		vkDestroyBuffer(device, buffer, nullptr);
		vkFreeMemory(device, memory, nullptr);
		vkFreeMemory(device, host, nullptr);
	}
};

VkDeviceMemory allocate(VkPhysicalDevice gpu, VkDevice device, const VkMemoryRequirements& need,
                        VkMemoryPropertyFlags flags) {
	VkPhysicalDeviceMemoryProperties types;
	vkGetPhysicalDeviceMemoryProperties(gpu, &types);
	VkMemoryAllocateInfo info{};
	info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
	info.allocationSize = need.size;
	while (info.memoryTypeIndex + 1 < types.memoryTypeCount &&
	       (!(need.memoryTypeBits >> info.memoryTypeIndex & 1) ||
	        (types.memoryTypes[info.memoryTypeIndex].propertyFlags & flags) != flags))
		++info.memoryTypeIndex;
	VkDeviceMemory memory = {};
	check_vk(vkAllocateMemory(device, &info, nullptr, &memory));
	return memory;
}

void make_image(Target& t, VkPhysicalDevice gpu, VkFormat format, uint32_t width, uint32_t height) {
	VkImageCreateInfo image{};
	image.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO;
	image.imageType = VK_IMAGE_TYPE_2D;
	image.format = format;
	image.extent = {width, height, 1};
	image.mipLevels = image.arrayLayers = 1;
	image.samples = VK_SAMPLE_COUNT_1_BIT;
	image.usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT;
	check_vk(vkCreateImage(t.device, &image, nullptr, &t.image));
	VkMemoryRequirements need;
	vkGetImageMemoryRequirements(t.device, t.image, &need);
	t.memory = allocate(gpu, t.device, need, 0);
	check_vk(vkBindImageMemory(t.device, t.image, t.memory, 0));
	VkImageViewCreateInfo view{};
	view.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO;
	view.image = t.image;
	view.viewType = VK_IMAGE_VIEW_TYPE_2D;
	view.format = format;
	view.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
	check_vk(vkCreateImageView(t.device, &view, nullptr, &t.view));
}

// Compatible with the window's render pass, so that its pipeline fits; the image ends as the source of a copy.
void make_pass(Target& t, VkFormat format, uint32_t width, uint32_t height) {
	VkAttachmentDescription color{};
	color.format = format;
	color.samples = VK_SAMPLE_COUNT_1_BIT;
	color.loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR;
	color.stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE;
	color.stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE;
	color.finalLayout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL;
	const VkAttachmentReference reference{0, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL};
	VkSubpassDescription subpass{};
	subpass.colorAttachmentCount = 1;
	subpass.pColorAttachments = &reference;
	VkSubpassDependency after{};
	after.dstSubpass = VK_SUBPASS_EXTERNAL;
	after.srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT;
	after.dstStageMask = VK_PIPELINE_STAGE_TRANSFER_BIT;
	after.srcAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT;
	after.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
	VkRenderPassCreateInfo pass{};
	pass.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO;
	pass.attachmentCount = pass.subpassCount = pass.dependencyCount = 1;
	pass.pAttachments = &color;
	pass.pSubpasses = &subpass;
	pass.pDependencies = &after;
	check_vk(vkCreateRenderPass(t.device, &pass, nullptr, &t.pass));
	VkFramebufferCreateInfo frame{};
	frame.sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO;
	frame.renderPass = t.pass;
	frame.attachmentCount = 1;
	frame.pAttachments = &t.view;
	frame.width = width, frame.height = height, frame.layers = 1;
	check_vk(vkCreateFramebuffer(t.device, &frame, nullptr, &t.framebuffer));
}

void make_host_side(Target& t, VkPhysicalDevice gpu, uint32_t family, size_t bytes) {
	VkBufferCreateInfo buffer{};
	buffer.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
	buffer.size = bytes;
	buffer.usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT;
	check_vk(vkCreateBuffer(t.device, &buffer, nullptr, &t.buffer));
	VkMemoryRequirements need;
	vkGetBufferMemoryRequirements(t.device, t.buffer, &need);
	t.host = allocate(gpu, t.device, need, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
	check_vk(vkBindBufferMemory(t.device, t.buffer, t.host, 0));
	VkCommandPoolCreateInfo pool{};
	pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
	pool.queueFamilyIndex = family;
	check_vk(vkCreateCommandPool(t.device, &pool, nullptr, &t.pool));
	VkCommandBufferAllocateInfo commands{};
	commands.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
	commands.commandPool = t.pool;
	commands.commandBufferCount = 1;
	check_vk(vkAllocateCommandBuffers(t.device, &commands, &t.commands));
}

} // namespace

Picture VulkanFrames::capture(ImDrawData* data) {
	const uint32_t width = uint32_t(window_->Width), height = uint32_t(window_->Height);
	const VkFormat format = window_->SurfaceFormat.format;
	check_vk(vkDeviceWaitIdle(device_));
	Target t(device_);
	make_image(t, gpu_, format, width, height);
	make_pass(t, format, width, height);
	make_host_side(t, gpu_, family_, size_t(width) * height * 4);

	begin_commands(t.commands);
	draw_frame(t.commands, t.pass, t.framebuffer, *window_, data);
	VkBufferImageCopy copy{};
	copy.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1};
	copy.imageExtent = {width, height, 1};
	vkCmdCopyImageToBuffer(t.commands, t.image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, t.buffer, 1, &copy);
	check_vk(vkEndCommandBuffer(t.commands));
	const VkSubmitInfo submit = submission(t.commands);
	check_vk(vkQueueSubmit(queue_, 1, &submit, VK_NULL_HANDLE));
	check_vk(vkQueueWaitIdle(queue_));

	Picture out{int(width), int(height), std::vector<uint8_t>(size_t(width) * height * 3)};
	void* mapped = nullptr;
	check_vk(vkMapMemory(device_, t.host, 0, VK_WHOLE_SIZE, 0, &mapped));
	const auto* from = static_cast<const uint8_t*>(mapped);
	const int red = format == VK_FORMAT_R8G8B8A8_UNORM ? 0 : 2;
	for (size_t i = 0; i < size_t(width) * height; ++i) {
		out.rgb[i * 3] = from[i * 4 + size_t(red)];
		out.rgb[i * 3 + 1] = from[i * 4 + 1];
		out.rgb[i * 3 + 2] = from[i * 4 + size_t(2 - red)];
	}
	vkUnmapMemory(device_, t.host);
	return out;
}

} // namespace kvrun::desktop
