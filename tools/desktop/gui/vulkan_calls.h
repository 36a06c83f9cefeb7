// What the window's frames and pictures of it do alike with Vulkan.
#pragma once
#include "tools/chat/text.h"
#include <backends/imgui_impl_vulkan.h>

namespace kvrun::desktop {

inline void check_vk(VkResult r) {
	if (r < 0) fail_chat(KVRUN_EDEVICE, "the window's Vulkan driver failed with VkResult {}", int(r));
}

inline void begin_commands(VkCommandBuffer commands) {
	VkCommandBufferBeginInfo begin{};
	begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
	begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
	check_vk(vkBeginCommandBuffer(commands, &begin));
}

// Clears the frame to the window's colour and draws into it.
inline void draw_frame(VkCommandBuffer commands, VkRenderPass pass, VkFramebuffer framebuffer,
                       const ImGui_ImplVulkanH_Window& window, ImDrawData* data) {
	VkRenderPassBeginInfo begin{};
	begin.sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO;
	begin.renderPass = pass;
	begin.framebuffer = framebuffer;
	begin.renderArea.extent = {uint32_t(window.Width), uint32_t(window.Height)};
	begin.clearValueCount = 1;
	begin.pClearValues = &window.ClearValue;
	vkCmdBeginRenderPass(commands, &begin, VK_SUBPASS_CONTENTS_INLINE);
	ImGui_ImplVulkan_RenderDrawData(data, commands);
	vkCmdEndRenderPass(commands);
}

// commands must live until the submission.
inline VkSubmitInfo submission(const VkCommandBuffer& commands) {
	VkSubmitInfo submit{};
	submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
	submit.commandBufferCount = 1;
	submit.pCommandBuffers = &commands;
	return submit;
}

} // namespace kvrun::desktop
