// Device memory: blocks, sub-allocation, and the table of buffers behind kvrun::Buffer ids.
#include "backends/vulkan/memory.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {
namespace {
constexpr uint64_t kMiB = uint64_t(1) << 20;
constexpr uint64_t kSmallestBlock = 64 * kMiB, kLargestBlock = 1024 * kMiB;
constexpr uint64_t kOwnBlock = 4 * kMiB; // bytes; larger buffers have a block of their own
constexpr VkMemoryPropertyFlags kDeviceLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                kHostVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
                                kHostCoherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                kHostCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;

} // namespace

Memory::Memory(Device& dev) : dev_(dev) {
	vkGetPhysicalDeviceMemoryProperties(dev.physical(), &props_);
	for (Mem m : {Mem::Device, Mem::Upload, Mem::Readback, Mem::Host, Mem::Arrival, Mem::Mapped})
		types_[size_t(m)] = types_for(m);
}

Memory::~Memory() {
	if (dev_.abandoned()) return;
	for (uint32_t id = 0; id < buffers_.size(); ++id)
		if (buffers_[id].handle) destroy(id);
	for (Block& b : blocks_)
		if (b.memory) dev_.fn.vkFreeMemory(dev_.handle(), b.memory, nullptr);
}

// On cards, device memory that the host can access is scarce (a 256 MiB window); elsewhere it is all memory. Memory
// that the host only writes should be uncached: a GPU that shares memory queries the host's caches at every access to
// memory that they may hold.
int memory_score(Mem m, VkMemoryPropertyFlags f, bool card, bool cpu) {
	const auto has = [&](VkMemoryPropertyFlags x) { return (f & x) == x; };
	switch (m) {
	case Mem::Device:
	case Mem::Arrival:
		return (has(kDeviceLocal) ? 8 : 0) +
		       (card ? (has(kHostVisible) ? 0 : 4) : (has(kHostVisible | kHostCoherent) ? 4 : 0)) +
		       (has(kHostCached) == cpu ? 1 : 0);
	// Written once, read by the device many times. On a device that shares memory, the same as Device.
	case Mem::Mapped:
		if (!card) return memory_score(Mem::Device, f, card, cpu);
		return has(kHostVisible | kHostCoherent) && !has(kDeviceLocal) ? (has(kHostCached) ? 0 : 1) : -1;
	case Mem::Upload:
		return has(kHostVisible | kHostCoherent) ? 8 + (has(kDeviceLocal) ? 4 : 0) + (has(kHostCached) ? 0 : 1) : -1;
	case Mem::Readback:
		return has(kHostVisible)
		           ? 1 + (has(kHostCached) ? 4 : 0) + (has(kHostCoherent) ? 2 : 0) + (has(kDeviceLocal) ? 0 : 1)
		           : -1;
	case Mem::Host:
		return has(kHostVisible | kHostCoherent) ? (has(kDeviceLocal) ? 0 : 2) + (has(kHostCached) ? 1 : 0) : -1;
	}
	return -1;
}

std::vector<uint32_t> Memory::types_for(Mem m) const {
	const DeviceInfo& info = dev_.report().info;
	const bool card = m == Mem::Mapped ? dev_.caps().mapped_heaps != 0 : info.type == "discrete";
	const auto score = [&](VkMemoryPropertyFlags f) { return memory_score(m, f, card, info.is_cpu); };
	std::vector<std::pair<int, uint32_t>> ranked;
	for (uint32_t i = 0; i < props_.memoryTypeCount; ++i) {
		const VkMemoryPropertyFlags f = props_.memoryTypes[i].propertyFlags;
		if (f & ~(kDeviceLocal | kHostVisible | kHostCoherent | kHostCached))
			continue; // lazily allocated, protected, vendor kinds
		if (props_.memoryHeaps[props_.memoryTypes[i].heapIndex].size == 0 || score(f) < 0) continue;
		ranked.emplace_back(-score(f), i);
	}
	std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
	std::vector<uint32_t> out;
	for (auto [s, i] : ranked) out.push_back(i);
	return out;
}

uint64_t Memory::reserved(uint32_t heaps) const {
	uint64_t n = 0;
	for (const Block& b : blocks_)
		if (b.memory && !b.apart && (heaps >> props_.memoryTypes[b.type].heapIndex & 1)) n += b.size;
	return n;
}

uint64_t Memory::reserved_apart() const {
	uint64_t n = 0;
	for (const Block& b : blocks_)
		if (b.memory && b.apart) n += b.size;
	return n;
}

uint64_t Memory::mapped_bytes() const { return mapped_free_bytes(dev_.physical(), dev_.caps(), reserved_apart()); }

uint64_t Memory::free_bytes() const {
	const Caps& c = dev_.caps();
	uint64_t in_blocks = 0; // reserved bytes that are not handed out can be used too
	for (const Block& b : blocks_)
		if (b.memory && !b.apart && (c.heaps >> props_.memoryTypes[b.type].heapIndex & 1))
			in_blocks += b.ranges.size() - b.ranges.taken();
	return vk::free_bytes(dev_.physical(), c, c.heaps, reserved(c.heaps)) + in_blocks;
}

MemoryStats Memory::stats() const {
	MemoryStats s{used_, 0, 0};
	for (const Block& b : blocks_)
		if (b.memory) {
			s.reserved += b.size;
			++s.blocks;
		}
	return s;
}

VkResult Memory::allocate(Block& b, uint64_t size, uint32_t type) {
	VkMemoryAllocateInfo info = make<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO);
	info.allocationSize = size;
	info.memoryTypeIndex = type;
	const VkResult r = dev_.fn.vkAllocateMemory(dev_.handle(), &info, nullptr, &b.memory);
	if (r != VK_SUCCESS) return r;
	b.size = size;
	b.type = type;
	b.ranges = FreeRanges(size);
	b.mapped = nullptr;
	if (props_.memoryTypes[type].propertyFlags & kHostVisible) {
		void* p = nullptr;
		const VkResult mapped = dev_.fn.vkMapMemory(dev_.handle(), b.memory, 0, VK_WHOLE_SIZE, 0, &p);
		if (mapped != VK_SUCCESS) {
			dev_.fn.vkFreeMemory(dev_.handle(), b.memory, nullptr);
			b.memory = VK_NULL_HANDLE;
			return mapped;
		}
		b.mapped = static_cast<std::byte*>(p);
	}
	return VK_SUCCESS;
}

// Adds a block and returns its index, or kNoBlock if this type has no room. own: the block is for one buffer. Otherwise
// blocks double in size with the memory in use, so that small runs stay small.
uint32_t Memory::add_block(uint32_t type, uint64_t need, bool own, bool apart, const char* label) {
	const Caps& c = dev_.caps();
	const uint32_t heap = props_.memoryTypes[type].heapIndex;
	const bool ours = c.heaps >> heap & 1;
	const uint64_t heap_size = std::min<uint64_t>(props_.memoryHeaps[heap].size, ours ? c.heap_bytes : UINT64_MAX);
	const uint64_t taken = apart ? reserved_apart() : reserved(1u << heap);
	const uint64_t left = apart               ? mapped_bytes()
	                      : ours              ? vk::free_bytes(dev_.physical(), c, 1u << heap, taken)
	                      : heap_size > taken ? heap_size - taken
	                                          : 0;
	if (need > left || need > c.max_alloc) return kNoBlock;
	uint64_t size = std::clamp(taken, kSmallestBlock, kLargestBlock);
	size = std::min({size, c.max_alloc, std::max<uint64_t>(heap_size / 8, kMiB), left});
	size = std::max(align_up(size, 4096), need);
	if (own || size > left || size > c.max_alloc) size = need;
	auto slot = std::find_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return !b.memory; });
	if (slot == blocks_.end()) {
		uint32_t live = 0;
		for (const Block& b : blocks_) live += b.memory != VK_NULL_HANDLE;
		if (live >= c.max_allocations) return kNoBlock;
		slot = blocks_.insert(blocks_.end(), Block{});
	}
	VkResult r = allocate(*slot, size, type);
	if (r != VK_SUCCESS && size > need) r = allocate(*slot, need, type);
	if (r != VK_SUCCESS) {
		refused_ = r;
		return kNoBlock;
	}
	slot->apart = apart;
	dev_.name(VK_OBJECT_TYPE_DEVICE_MEMORY, uint64_t(slot->memory), label);
	log_at(3, "# vulkan: block of {} MiB, memory type {}", slot->size >> 20, type);
	return uint32_t(slot - blocks_.begin());
}

// Takes a piece of block i if it has room.
bool Memory::take(BufferRec& r, uint32_t i, uint64_t bytes, uint64_t align) {
	Block& b = blocks_[i];
	const uint64_t at = b.ranges.take(bytes, align);
	if (at == FreeRanges::kNowhere) return false;
	r.block = i;
	r.at = at;
	r.mapped = b.mapped ? b.mapped + at : nullptr;
	r.coherent = props_.memoryTypes[b.type].propertyFlags & kHostCoherent;
	return true;
}

bool Memory::place(BufferRec& r, uint32_t type, const VkMemoryRequirements& req, bool apart) {
	const uint64_t align = std::max<uint64_t>(req.alignment, 256), bytes = align_up(req.size, align);
	// Large buffers have a block of their own while there is room for one: freed, it returns to the system. The cache
	// grows by copying its buffers to larger ones, which would not fit where the smaller ones were.
	if (bytes >= kOwnBlock)
		if (const uint32_t i = add_block(type, bytes, /*own=*/true, apart, r.label); i != kNoBlock)
			return take(r, i, bytes, align);
	for (uint32_t i = 0; i < blocks_.size(); ++i)
		if (blocks_[i].memory && blocks_[i].type == type && blocks_[i].apart == apart && take(r, i, bytes, align))
			return true;
	const uint32_t i = add_block(type, bytes, /*own=*/false, apart, r.label);
	return i != kNoBlock && take(r, i, bytes, align);
}

uint32_t Memory::create(uint64_t bytes, Mem m, const char* label) {
	const Caps& c = dev_.caps();
	const uint64_t largest = std::min(c.max_alloc, c.max_buffer);
	if (bytes > largest)
		fail(Code::OutOfMemory,
		     "{} needs {} MiB in one buffer, this device allows {} MiB (maxMemoryAllocationSize, maxBufferSize)", label,
		     bytes >> 20, largest >> 20);
	BufferRec r;
	r.bytes = bytes;
	r.size = align_up(std::max<uint64_t>(bytes, 1), 16);
	r.label = label;
	VkBufferCreateInfo info = make<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
	info.size = r.size;
	// llvmpipe's machine code depends on which texel buffers have a power of two as their size. With both kinds of
	// sizes, every kernel would be compiled more than once.
	if (c.texel_range && std::has_single_bit(r.size) && r.size < largest) info.size += 16;
	info.usage =
	    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
	if (c.texel_range) info.usage |= VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT;
	const uint32_t families[] = {dev_.queue_family(), c.transfer_family};
	if ((m == Mem::Host || m == Mem::Arrival || m == Mem::Mapped) && dev_.transfer_queue() &&
	    families[0] != families[1]) {
		info.sharingMode = VK_SHARING_MODE_CONCURRENT;
		info.queueFamilyIndexCount = 2;
		info.pQueueFamilyIndices = families;
	}
	VK_TRY(dev_.fn.vkCreateBuffer(dev_.handle(), &info, nullptr, &r.handle));
	VkMemoryRequirements req{};
	dev_.fn.vkGetBufferMemoryRequirements(dev_.handle(), r.handle, &req);
	const bool apart = m == Mem::Mapped && c.mapped_bytes > 0,
	           own = !apart && (m == Mem::Device || m == Mem::Arrival || m == Mem::Mapped);
	bool placed = false;
	refused_ = VK_SUCCESS;
	for (uint32_t type : types_[size_t(m)]) {
		if (!(req.memoryTypeBits >> type & 1)) continue;
		// a card's weights must not go to host memory unrequested: that would be slow without a message
		if (own && !(c.heaps >> props_.memoryTypes[type].heapIndex & 1)) continue;
		if ((placed = place(r, type, req, apart))) break;
	}
	if (!placed) {
		dev_.fn.vkDestroyBuffer(dev_.handle(), r.handle, nullptr);
		if (refused_ == VK_ERROR_DEVICE_LOST) fail_call(refused_, "vkAllocateMemory");
		if (apart)
			fail(Code::OutOfMemory,
			     "{} needs {:.1f} MiB of host memory that the device reads, {:.1f} MiB are free{}; leave more of them "
			     "on "
			     "the device, or choose a smaller model",
			     label, double(bytes) / double(kMiB), double(mapped_bytes()) / double(kMiB),
			     refused_ == VK_SUCCESS ? "" : fmt::format(", but the driver returned {}", result_name(refused_)));
		fail(Code::OutOfMemory,
		     "{} needs {:.1f} MiB of device memory, {:.1f} MiB are free{}; give a smaller -c, a --kv with fewer bits, "
		     "or a "
		     "smaller model",
		     label, double(bytes) / double(kMiB), double(free_bytes()) / double(kMiB),
		     refused_ == VK_SUCCESS ? "" : fmt::format(", but the driver returned {}", result_name(refused_)));
	}
	if (!c.visible && (m == Mem::Device || m == Mem::Arrival)) r.mapped = nullptr;
	const VkResult bound = dev_.fn.vkBindBufferMemory(dev_.handle(), r.handle, blocks_[r.block].memory, r.at);
	uint32_t id = uint32_t(buffers_.size());
	if (!free_ids_.empty()) {
		id = free_ids_.back();
		free_ids_.pop_back();
	} else {
		buffers_.emplace_back();
		free_ids_.reserve(buffers_.capacity());
	}
	buffers_[id] = r;
	used_ += r.size;
	if (bound != VK_SUCCESS) {
		destroy(id);
		fail_call(bound, "vkBindBufferMemory");
	}
	dev_.name(VK_OBJECT_TYPE_BUFFER, uint64_t(r.handle), label);
	return id;
}

void Memory::destroy(uint32_t id) noexcept {
	BufferRec& r = buffers_[id];
	VkMemoryRequirements req{};
	dev_.fn.vkGetBufferMemoryRequirements(dev_.handle(), r.handle, &req);
	for (auto& [range, view] : r.texels) dev_.fn.vkDestroyBufferView(dev_.handle(), view, nullptr);
	dev_.fn.vkDestroyBuffer(dev_.handle(), r.handle, nullptr);
	Block& b = blocks_[r.block];
	b.ranges.give(r.at, align_up(req.size, std::max<uint64_t>(req.alignment, 256)));
	used_ -= r.size;
	if (b.ranges.empty()) {
		dev_.fn.vkFreeMemory(dev_.handle(), b.memory, nullptr);
		b.memory = VK_NULL_HANDLE;
		b.size = 0;
	}
	r = BufferRec{};
	free_ids_.push_back(id); // create() has reserved the room
}

VkBufferView Memory::texel_view(uint32_t id, uint64_t at, uint64_t bytes) {
	VkBufferView& view = buffers_[id].texels[{at, bytes}];
	if (view) return view;
	VkBufferViewCreateInfo info = make<VkBufferViewCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO);
	info.buffer = buffers_[id].handle;
	info.format = VK_FORMAT_R32G32B32A32_UINT; // every device supports it for texel buffers
	info.offset = at;
	info.range = bytes;
	VK_TRY(dev_.fn.vkCreateBufferView(dev_.handle(), &info, nullptr, &view));
	return view;
}

void Memory::invalidate(const BufferRec& r) {
	if (r.coherent) return;
	VkMappedMemoryRange range = make<VkMappedMemoryRange>(VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE);
	range.memory = blocks_[r.block].memory;
	const uint64_t atom = std::max<uint64_t>(dev_.caps().atom, 1);
	range.offset = r.at / atom * atom;
	range.size = std::min(align_up(r.at + r.size, atom), blocks_[r.block].size) - range.offset;
	VK_TRY(dev_.fn.vkInvalidateMappedMemoryRanges(dev_.handle(), 1, &range));
}

} // namespace kvrun::vk
