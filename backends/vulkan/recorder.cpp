// Records dispatches and copies: descriptors, and hazards turned into barriers.
#include "backends/vulkan/recorder.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

constexpr size_t kMostPending = 256; // accesses remembered between two barriers
constexpr size_t kMostSets = 4096;   // descriptor sets kept
constexpr uint32_t kSetsPerPool = 256;
constexpr uint64_t kZeroBytes = 256;

// First guesses of a device's speed, corrected by measurement: ms per byte, ms per flop, ms per dispatch.
struct Guess {
	double per_byte, per_flop, per_dispatch;
};
Guess first_guess(bool cpu) {
	return cpu ? Guess{1.0 / 5e6, 1.0 / 20e6, 0.02} : Guess{1.0 / 100e6, 1.0 / 1000e6, 0.005};
}

} // namespace

bool Recorder::SetKey::operator==(const SetKey& o) const {
	return layout == o.layout && n == o.n && !std::memcmp(info, o.info, n * sizeof info[0]);
}
size_t Recorder::SetHash::operator()(const SetKey& k) const { return XXH3_64bits(k.info, k.n * sizeof k.info[0]); }

uint32_t Recorder::resolve(const Pipeline& p, std::span<const Bind> binds, uint32_t* at) {
	const Reflection& r = *p.reflection;
	const Caps& c = dev_.caps();
	if (binds.size() != r.bindings.size())
		fail(Code::Internal, "kernel {} has {} bindings, {} views were given", p.name, r.bindings.size(), binds.size());
	std::fill_n(at, kMaxBindings / 4, 0u);
	for (size_t i = 0; i < binds.size(); ++i) {
		Bind b = binds[i];
		const Binding& want = r.bindings[i];
		if (!b.bytes) b = {zeros_, 0, kZeroBytes};
		BufferRec& buf = mem_.at(b.buffer);
		if (!buf.handle || b.at + b.bytes > buf.bytes)
			fail(Code::Internal, "kernel {}, {}: view of bytes {}..{} leaves buffer {} of {} bytes", p.name, want.name,
			     b.at, b.at + b.bytes, buf.label, buf.bytes);
		if (b.at % std::max(want.stride, 4u))
			fail(Code::Internal, "kernel {}, {}: view starts at byte {}, its elements have {} bytes", p.name, want.name,
			     b.at, want.stride);
		const uint64_t align = want.texel ? c.texel_align : c.align, most = want.texel ? c.texel_range : c.range;
		const uint64_t down = b.at / align * align;
		const uint64_t range = b.at - down + align_up(b.bytes, std::max(want.stride, 4u));
		if (range > most)
			fail(Code::Unsupported, "kernel {}, {}: {} bytes in one binding, this device allows {} ({})", p.name,
			     want.name, range, most, want.texel ? "maxTexelBufferElements" : "maxStorageBufferRange");
		at[i >> 2] |= uint32_t((b.at - down) / 4) << (8 * (i & 3));
		infos_[i] = {buf.handle, down, range};
		if (want.texel) views_[i] = mem_.texel_view(b.buffer, down, range);
		buf.last_use = next_value_;
	}
	return uint32_t(binds.size());
}

void Recorder::check_groups(const Pipeline& p, Groups g) const {
	const Caps& c = dev_.caps();
	const uint32_t n[3] = {g.x, g.y, g.z};
	for (int i = 0; i < 3; ++i)
		if (n[i] > c.groups[i])
			fail(Code::Unsupported,
			     "kernel {}: {} workgroups in dimension {}, this device allows {} (maxComputeWorkGroupCount)", p.name,
			     n[i], i, c.groups[i]);
}

// ---- hazards. All are found here: every access since the last barrier is remembered, and an overlap with a write
// needs a barrier. It is a memory barrier for the stages in use, not one per buffer: its execution scope is the same,
// it settles all remembered accesses at once, and drivers flush whole caches in both cases.

void Recorder::barrier(bool for_transfer) {
	bool transfer = false, compute = stale_for_transfer_;
	for (const Access& a : pending_) (a.transfer ? transfer : compute) = true;
	constexpr VkPipelineStageFlags2 kCompute = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
	                                kTransfer = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
	constexpr VkAccessFlags2 kShader = VK_ACCESS_2_SHADER_STORAGE_READ_BIT | VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT |
	                                   VK_ACCESS_2_SHADER_SAMPLED_READ_BIT, // texel buffers
	    kCopy = VK_ACCESS_2_TRANSFER_READ_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT;
	VkMemoryBarrier2 b = make<VkMemoryBarrier2>(VK_STRUCTURE_TYPE_MEMORY_BARRIER_2);
	b.srcStageMask = (compute ? kCompute : 0) | (transfer ? kTransfer : 0);
	b.srcAccessMask =
	    (compute ? VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT : 0) | (transfer ? VK_ACCESS_2_TRANSFER_WRITE_BIT : 0);
	b.dstStageMask = kCompute | (for_transfer ? kTransfer : 0);
	b.dstAccessMask = kShader | (for_transfer ? kCopy : 0);
	VkDependencyInfo info = make<VkDependencyInfo>(VK_STRUCTURE_TYPE_DEPENDENCY_INFO);
	info.memoryBarrierCount = 1;
	info.pMemoryBarriers = &b;
	dev_.fn.vkCmdPipelineBarrier2(slot_->cmd, &info);
	++counters_.barriers;
	pending_.clear();
	stale_for_transfer_ = !for_transfer;
}

// An access is the range that the binding covers, from the offset alignment below the view. A shader does not access
// the elements around its view, but validation layers assume that a dispatch accesses whole bindings.
void Recorder::hazards(const Pipeline& p, std::span<const Bind> binds, bool continues) {
	const Reflection& r = *p.reflection;
	const uint64_t mine = continues && !dev_.caps().whole_bindings ? op_ : ++op_;
	bool needed = pending_.size() + binds.size() > kMostPending;
	Access now[kMaxBindings];
	for (size_t i = 0; i < binds.size(); ++i) {
		const Bind& b = binds[i];
		if (!b.bytes) continue;
		const Access& x = now[i] = {
		    b.buffer, infos_[i].offset, infos_[i].offset + infos_[i].range, r.bindings[i].writable, false, mine};
		for (const Access& a : pending_)
			needed = needed || (a.buffer == x.buffer && (a.write || x.write) && a.begin < x.end && x.begin < a.end &&
			                    a.op != mine);
	}
	if (needed) barrier(false);
	for (size_t i = 0; i < binds.size(); ++i)
		if (binds[i].bytes) pending_.push_back(now[i]);
}

// All ranges of one copy or fill: first checked together, then remembered, so that its barrier does not forget its own
// reads.
void Recorder::transfer_hazards(std::initializer_list<Range> ranges) {
	++op_;
	bool needed = stale_for_transfer_ || pending_.size() > kMostPending;
	for (const Range& r : ranges)
		for (const Access& a : pending_)
			needed = needed || (a.buffer == r.buffer && (a.write || r.write) && a.begin < r.end && r.begin < a.end);
	if (needed) barrier(true);
	for (const Range& r : ranges) pending_.push_back({r.buffer, r.begin, r.end, r.write, true, op_});
}

// ---- descriptors

// Neighbouring bindings of one kind become one write.
uint32_t Recorder::describe(const Reflection& r, VkDescriptorSet set, VkWriteDescriptorSet* out) const {
	uint32_t n = 0;
	for (uint32_t i = 0; i < r.bindings.size(); ++i) {
		if (i > 0 && r.bindings[i].texel == r.bindings[i - 1].texel) {
			++out[n - 1].descriptorCount;
			continue;
		}
		VkWriteDescriptorSet& w = out[n++] = make<VkWriteDescriptorSet>(VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET);
		w.dstSet = set;
		w.dstBinding = i;
		w.descriptorCount = 1;
		w.descriptorType = r.bindings[i].type();
		w.pBufferInfo = infos_ + i;
		w.pTexelBufferView = views_ + i;
	}
	return n;
}

VkDescriptorSet Recorder::cached_set(const SetKey& key, const Reflection& r) {
	if (auto it = sets_.find(key); it != sets_.end()) return it->second;
	if (sets_.size() >= kMostSets) forget_sets();
	if (sets_left_ == 0) {
		const VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kSetsPerPool * kMaxBindings},
		                                      {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, kSetsPerPool * kMaxBindings}};
		VkDescriptorPoolCreateInfo info =
		    make<VkDescriptorPoolCreateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO);
		info.maxSets = kSetsPerPool;
		info.poolSizeCount = dev_.caps().texel_range ? 2 : 1;
		info.pPoolSizes = sizes;
		VkDescriptorPool pool = VK_NULL_HANDLE;
		VK_TRY(dev_.fn.vkCreateDescriptorPool(dev_.handle(), &info, nullptr, &pool));
		pools_.push_back(pool);
		sets_left_ = kSetsPerPool;
	}
	VkDescriptorSetAllocateInfo info =
	    make<VkDescriptorSetAllocateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO);
	info.descriptorPool = pools_.back();
	info.descriptorSetCount = 1;
	info.pSetLayouts = &key.layout;
	VkDescriptorSet set = VK_NULL_HANDLE;
	VK_TRY(dev_.fn.vkAllocateDescriptorSets(dev_.handle(), &info, &set));
	--sets_left_;
	VkWriteDescriptorSet w[kMaxBindings];
	dev_.fn.vkUpdateDescriptorSets(dev_.handle(), describe(r, set, w), w, 0, nullptr);
	++counters_.descriptor_updates;
	sets_.emplace(key, set);
	return set;
}

// Drivers reuse buffer handles: after a buffer is destroyed, an equal key may mean another buffer.
void Recorder::forget_sets() {
	bound_layout_ = VK_NULL_HANDLE;
	n_bound_ = 0;
	sets_.clear();
	if (!pools_.empty()) old_pools_.push_back({std::move(pools_), next_value_});
	pools_.clear();
	sets_left_ = 0;
}

void Recorder::bind_descriptors(const Pipeline& p, uint32_t n) {
	if (p.layout == bound_layout_ && n == n_bound_ && !std::memcmp(infos_, bound_infos_, n * sizeof infos_[0])) return;
	if (dev_.caps().push_descriptor) {
		VkWriteDescriptorSet w[kMaxBindings];
		const uint32_t writes = describe(*p.reflection, VK_NULL_HANDLE, w);
		dev_.fn.vkCmdPushDescriptorSetKHR(slot_->cmd, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, writes, w);
		++counters_.descriptor_updates;
	} else {
		SetKey key{p.set_layout, n, {}};
		std::memcpy(key.info, infos_, n * sizeof infos_[0]);
		const VkDescriptorSet set = cached_set(key, *p.reflection);
		dev_.fn.vkCmdBindDescriptorSets(slot_->cmd, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, 1, &set, 0, nullptr);
	}
	bound_layout_ = p.layout;
	n_bound_ = n;
	std::memcpy(bound_infos_, infos_, n * sizeof infos_[0]);
}

// ---- dispatch

void Recorder::dispatch_bytes(Pipeline& p, void* push, uint32_t push_bytes, uint32_t* at, std::span<const Bind> binds,
                              Groups g, const Work& w) {
	if (push_bytes != p.reflection->push_bytes)
		fail(Code::Internal, "kernel {} has {} bytes of push constants, its struct has {}", p.name,
		     p.reflection->push_bytes, push_bytes);
	if (!g.x || !g.y || !g.z) return;
	check_groups(p, g);
	log_at(3, "# vulkan: {} {} ({}, {}, {})", w.label, p.name, g.x, g.y, g.z);
	const Guess guess = first_guess(dev_.caps().is_cpu);
	const double work = w.bytes * guess.per_byte + w.flops * guess.per_flop; // ms at pace 1
	const double pace = p.pace, ms = guess.per_dispatch + pace * work;
	// a single dispatch that is too long is cut along its longest dimension, one submission per piece
	uint32_t* const longest = g.x >= g.y && g.x >= g.z ? &g.x : g.y >= g.z ? &g.y : &g.z;
	const uint32_t whole = *longest;
	const uint32_t pieces = ms > 1.5 * target_ms_ ? uint32_t(std::min<double>(whole, std::ceil(ms / target_ms_))) : 1;
	if (pieces > 1) ++counters_.split_dispatches;
	for (uint32_t i = 0; i < pieces; ++i) {
		const uint32_t first = uint32_t(uint64_t(whole) * i / pieces),
		               end = uint32_t(uint64_t(whole) * (i + 1) / pieces);
		if (slot_ && slot_->predicted_ms > 0 && slot_->predicted_ms + ms / pieces > target_ms_) submit();
		begin();
		const uint32_t n = resolve(p, binds, at); // after submit(), because it marks the buffers with this submission
		if (i > 0) barrier(false); // validation assumes that a piece writes whole bindings, across submissions too
		hazards(p, binds, i > 0 || w.continues);
		if (pieces > 1) bound_ = nullptr;
		if (bound_ != &p) {
			dev_.fn.vkCmdBindPipeline(slot_->cmd, VK_PIPELINE_BIND_POINT_COMPUTE,
			                          pieces > 1 ? kernels_.with_base(p) : p.handle);
			bound_ = pieces > 1 ? nullptr : &p;
		}
		bind_descriptors(p, n);
		dev_.fn.vkCmdPushConstants(slot_->cmd, p.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, push);
		if (pieces > 1) {
			Groups base{0, 0, 0};
			(longest == &g.x ? base.x : longest == &g.y ? base.y : base.z) = first;
			*longest = end - first;
			dev_.fn.vkCmdDispatchBase(slot_->cmd, base.x, base.y, base.z, g.x, g.y, g.z);
		} else {
			dev_.fn.vkCmdDispatch(slot_->cmd, g.x, g.y, g.z);
		}
		++counters_.dispatches;
		slot_->predicted_ms += ms / pieces;
		slot_->overhead_ms += guess.per_dispatch / pieces;
		slot_->shares.push_back({&p, pace * work / pieces, pace});
		stamp(w.label, w.bytes / pieces, p.name);
	}
}

void Recorder::fill(uint32_t buffer, uint64_t at, uint64_t bytes, uint32_t word) {
	BufferRec& b = mem_.at(buffer);
	KV_ASSERT(at % 4 == 0 && at + bytes <= b.size);
	bytes = align_up(bytes, 4);
	if (!bytes) return;
	begin();
	transfer_hazards({{buffer, at, at + bytes, true}});
	dev_.fn.vkCmdFillBuffer(slot_->cmd, b.handle, at, bytes, word);
	b.last_use = b.filled = next_value_;
	stamp("fill", double(bytes));
}

void Recorder::copy(const Bind& dst, const Bind& src, const char* label) {
	KV_ASSERT(dst.bytes == src.bytes);
	if (!src.bytes) return;
	begin();
	BufferRec &d = mem_.at(dst.buffer), &s = mem_.at(src.buffer);
	KV_ASSERT(dst.at + dst.bytes <= d.bytes && src.at + src.bytes <= s.bytes);
	KV_ASSERT(dst.buffer != src.buffer || dst.at >= src.at + src.bytes || src.at >= dst.at + dst.bytes);
	transfer_hazards({{src.buffer, src.at, src.at + src.bytes, false}, {dst.buffer, dst.at, dst.at + dst.bytes, true}});
	const VkBufferCopy region{src.at, dst.at, src.bytes};
	dev_.fn.vkCmdCopyBuffer(slot_->cmd, s.handle, d.handle, 1, &region);
	d.last_use = d.filled = s.last_use = next_value_;
	stamp(label, 2.0 * double(src.bytes));
}

} // namespace kvrun::vk
