// Device memory: blocks, sub-allocation, and the table of buffers behind kvrun::Buffer ids.
#pragma once
#include "backends/vulkan/device.h"
#include "engine/core/free_ranges.h"
#include <map>

namespace kvrun::vk {

struct BufferRec { // the buffer of a kvrun::Buffer's id
	VkBuffer handle = VK_NULL_HANDLE;
	uint64_t bytes = 0;          // bytes requested
	uint64_t size = 0;           // bytes of the VkBuffer: rounded up to 16
	std::byte* mapped = nullptr; // null if the host cannot access it
	bool coherent = true;
	uint64_t last_use = 0; // number of the last submission that touches it
	uint64_t filled = 0;   // number of the last submission with a fill of it or a copy to it
	uint64_t transfer = 0; // number of the last transfer that touches it
	uint32_t block = 0;
	uint64_t at = 0; // bytes from the start of the block
	const char* label = "";
	std::map<std::pair<uint64_t, uint64_t>, VkBufferView> texels; // by start and size in bytes
};

struct MemoryStats {
	uint64_t used = 0, reserved = 0; // bytes handed out, bytes taken from the driver
	uint32_t blocks = 0;
};

// How suitable memory with these properties is; negative if unusable. card: device memory is separate from the host's.
// cpu: the device is the host's processor.
int memory_score(Mem, VkMemoryPropertyFlags, bool card, bool cpu);

class Memory {
 public:
	explicit Memory(Device&);
	~Memory();
	Memory(const Memory&) = delete;

	// A buffer with undefined content. Throws Error{OutOfMemory} with need, free and advice.
	uint32_t create(uint64_t bytes, Mem, const char* label);
	void destroy(uint32_t id) noexcept; // no submission may still use it
	BufferRec& at(uint32_t id) { return buffers_[id]; }
	// The bytes as R32G32B32A32_UINT texels; lives as long as the buffer. Starts at a multiple of Caps::texel_align.
	VkBufferView texel_view(uint32_t id, uint64_t at, uint64_t bytes);
	void invalidate(const BufferRec&); // before the host reads memory that is not coherent
	uint64_t free_bytes() const;       // that create() may still take for Mem::Device
	uint64_t mapped_bytes() const;     // and for Mem::Mapped, if that is separate memory; else 0
	MemoryStats stats() const;

 private:
	struct Block {
		VkDeviceMemory memory = VK_NULL_HANDLE;
		uint64_t size = 0;
		uint32_t type = 0;
		bool apart = false; // only for Mem::Mapped, and not part of the device's memory
		std::byte* mapped = nullptr;
		FreeRanges ranges{0};
	};
	std::vector<uint32_t> types_for(Mem) const; // memory types, best first
	bool place(BufferRec&, uint32_t type, const VkMemoryRequirements&, bool apart);
	bool take(BufferRec&, uint32_t block, uint64_t bytes, uint64_t align);
	static constexpr uint32_t kNoBlock = UINT32_MAX;
	uint32_t add_block(uint32_t type, uint64_t need, bool own, bool apart, const char* label);
	uint64_t reserved_apart() const;
	VkResult allocate(Block&, uint64_t size, uint32_t type);
	uint64_t reserved(uint32_t heaps) const; // bits

	Device& dev_;
	VkPhysicalDeviceMemoryProperties props_{};
	std::vector<uint32_t> types_[6]; // by Mem
	std::vector<Block> blocks_;      // memory is null if the block was freed
	std::vector<BufferRec> buffers_; // by id; handle is null where free
	std::vector<uint32_t> free_ids_;
	uint64_t used_ = 0;
	VkResult refused_ = VK_SUCCESS; // the driver's last result in create()
};

} // namespace kvrun::vk
