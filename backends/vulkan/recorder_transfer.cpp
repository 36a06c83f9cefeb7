// Copies concurrent with ops, on a separate queue, counted by a timeline semaphore.
#include "backends/vulkan/recorder.h"
#include <algorithm>

namespace kvrun::vk {
namespace {
constexpr uint64_t kTransfers = 256; // in flight at a time
}

void Recorder::create_transfers() {
	if (transfers_.semaphore) return;
	VkCommandPoolCreateInfo pool = make<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
	pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
	pool.queueFamilyIndex = dev_.caps().transfer_family;
	if (!transfers_.pool) VK_TRY(dev_.fn.vkCreateCommandPool(dev_.handle(), &pool, nullptr, &transfers_.pool));
	VkSemaphoreTypeCreateInfo type = make<VkSemaphoreTypeCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
	type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
	VkSemaphoreCreateInfo info = make<VkSemaphoreCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO);
	info.pNext = &type;
	VK_TRY(dev_.fn.vkCreateSemaphore(dev_.handle(), &info, nullptr, &transfers_.semaphore));
}

uint64_t Recorder::transfer(const Bind& dst, const Bind& src) {
	if (!dev_.transfer_queue()) {
		copy(dst, src, "fetch");
		return 0;
	}
	if (!lost_.empty()) throw Error(lost_code_, lost_);
	create_transfers();
	BufferRec &d = mem_.at(dst.buffer), &s = mem_.at(src.buffer);
	KV_ASSERT(dst.bytes == src.bytes && dst.at + dst.bytes <= d.bytes && src.at + src.bytes <= s.bytes);
	// Their fills and copies, as the zeros of new memory, are on the other queue: the transfer would overtake them.
	if (const uint64_t before = std::max(d.filled, s.filled); before > completed_) {
		if (before == next_value_) submit();
		wait_for(before);
	}
	const uint64_t n = transfers_.last + 1;
	if (transfers_.cmds.size() < kTransfers) {
		VkCommandBufferAllocateInfo info =
		    make<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
		info.commandPool = transfers_.pool;
		info.commandBufferCount = 1;
		VkCommandBuffer fresh = VK_NULL_HANDLE;
		VK_TRY(dev_.fn.vkAllocateCommandBuffers(dev_.handle(), &info, &fresh));
		transfers_.cmds.push_back(fresh);
	} else {
		wait_transfer(n - kTransfers);
		transfers_.cmds.push_back(transfers_.cmds.front());
		transfers_.cmds.pop_front();
	}
	const VkCommandBuffer cmd = transfers_.cmds.back();
	VkCommandBufferBeginInfo begin = make<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
	begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
	check(dev_.fn.vkBeginCommandBuffer(cmd, &begin), "vkBeginCommandBuffer");
	const VkBufferCopy region{src.at, dst.at, src.bytes};
	dev_.fn.vkCmdCopyBuffer(cmd, s.handle, d.handle, 1, &region);
	check(dev_.fn.vkEndCommandBuffer(cmd), "vkEndCommandBuffer");
	VkCommandBufferSubmitInfo work = make<VkCommandBufferSubmitInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO);
	work.commandBuffer = cmd;
	VkSemaphoreSubmitInfo signal = make<VkSemaphoreSubmitInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO);
	signal.semaphore = transfers_.semaphore;
	signal.value = n;
	signal.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
	VkSubmitInfo2 info = make<VkSubmitInfo2>(VK_STRUCTURE_TYPE_SUBMIT_INFO_2);
	info.commandBufferInfoCount = 1;
	info.pCommandBufferInfos = &work;
	info.signalSemaphoreInfoCount = 1;
	info.pSignalSemaphoreInfos = &signal;
	check(dev_.fn.vkQueueSubmit2(dev_.transfer_queue(), 1, &info, VK_NULL_HANDLE), "vkQueueSubmit2");
	transfers_.last = d.transfer = s.transfer = n;
	return n;
}

void Recorder::arrive(uint64_t n) {
	if (n > transfers_.wanted) transfers_.wanted = n;
}

VkResult Recorder::wait_semaphore(uint64_t n, uint64_t ns) {
	VkSemaphoreWaitInfo info = make<VkSemaphoreWaitInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO);
	info.semaphoreCount = 1;
	info.pSemaphores = &transfers_.semaphore;
	info.pValues = &n;
	return dev_.fn.vkWaitSemaphores(dev_.handle(), &info, ns);
}

void Recorder::wait_transfer(uint64_t n) {
	const VkResult r = wait_semaphore(n, wait_ns());
	check(r, "vkWaitSemaphores");
	if (r == VK_TIMEOUT) timed_out();
}

} // namespace kvrun::vk
