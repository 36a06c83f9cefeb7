// Submissions: command buffers in flight, staging memory, waiting, and timestamps, from which each pipeline's pace is
// learned.
#include "backends/vulkan/recorder.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include <algorithm>
#include <cstring>

namespace kvrun::vk {
namespace {

constexpr uint32_t kQueries = 2048;                        // timestamps of one command buffer
constexpr uint64_t kStagingBlock = uint64_t(8) << 20;      // bytes, at most
constexpr uint64_t kSmallStagingBlock = uint64_t(1) << 16; // tried where memory has no room for larger blocks
constexpr size_t kUploadBlocks = 4;
constexpr size_t kDownloadBlocks = 2; // kept after wait()
constexpr size_t kSlots = 16;         // command buffers in flight
constexpr double kHardCapMs = 500;
constexpr uint64_t kWaitNs = uint64_t(120) * 1000000000; // for one submission on a GPU; watchdogs act long before
constexpr uint64_t kWaitCpuNs = uint64_t(3600) * 1000000000;
constexpr uint64_t kLastWaitNs = uint64_t(5) * 1000000000; // last wait for a device that did not answer

} // namespace

Recorder::Recorder(Device& dev, Memory& mem, Kernels& kernels, double submit_ms)
    : dev_(dev), mem_(mem), kernels_(kernels), target_ms_(std::min(submit_ms, kHardCapMs)) {
	if (!(submit_ms > 0)) fail(Code::Invalid, "the time of a submission is {} ms, expected a time above 0", submit_ms);
	zeros_ = mem_.create(256, Mem::Device, "zeros");
	try {
		fill(zeros_, 0, 256, 0);
		barrier(false); // it is used for empty binds, which hazards() skips
	} catch (...) {     // the destructor does not run
		release();
		throw;
	}
}

Recorder::~Recorder() {
	if (!settle()) {
		dev_.abandon();
		return;
	}
	for (auto [id, value] : retired_) mem_.destroy(id);
	for (auto* list : {&uploads_, &downloads_})
		for (Staging& s : *list) mem_.destroy(s.buffer);
	mem_.destroy(zeros_);
	release();
}

// Waits for running work. Returns false if it does not end; then nothing that it uses may be destroyed.
bool Recorder::settle() noexcept {
	if (hangs_) { // a device that was only late finishes in this time
		for (const Slot& s : slots_)
			if (s.pending && s.value > completed_ &&
			    dev_.fn.vkWaitForFences(dev_.handle(), 1, &s.fence, VK_TRUE, kLastWaitNs) == VK_TIMEOUT)
				return false;
		if (transfers_.last && wait_semaphore(transfers_.last, kLastWaitNs) == VK_TIMEOUT) return false;
	}
	if (next_value_ > 1 || transfers_.last) dev_.fn.vkDeviceWaitIdle(dev_.handle()); // a lost device returns at once
	return true;
}

// Releases objects that do not belong to a buffer.
void Recorder::release() {
	forget_sets();
	for (OldPools& o : old_pools_)
		for (VkDescriptorPool p : o.pools) dev_.fn.vkDestroyDescriptorPool(dev_.handle(), p, nullptr);
	dev_.fn.vkDestroySemaphore(dev_.handle(), transfers_.semaphore, nullptr);
	dev_.fn.vkDestroyCommandPool(dev_.handle(), transfers_.pool, nullptr);
	for (Slot& s : slots_) destroy(s);
	slots_.clear();
}

void Recorder::destroy(Slot& s) {
	dev_.fn.vkDestroyFence(dev_.handle(), s.fence, nullptr);
	dev_.fn.vkDestroyQueryPool(dev_.handle(), s.queries, nullptr);
	dev_.fn.vkDestroyCommandPool(dev_.handle(), s.pool, nullptr);
}

void Recorder::check(VkResult r, const char* call) {
	if (r >= 0) return;
	const bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
	lose(memory ? Code::OutOfMemory : Code::Device,
	     fmt::format("{} returned {}: {}", call, result_name(r),
	                 r == VK_ERROR_DEVICE_LOST ? "the driver reset the device; open it again, with a smaller "
	                                             "KVRUN_SUBMIT_MS if it was a watchdog"
	                 : memory ? "what it was to do is lost; open it again, with a smaller -c or a --kv "
	                            "with fewer bits"
	                          : "what it was to do is lost; open it again"));
}

// Buffers no longer hold the expected contents and pending reads will not arrive, so the backend cannot continue.
void Recorder::lose(Code code, std::string why) {
	if (lost_.empty()) lost_ = std::move(why), lost_code_ = code;
	reads_.clear();
	throw Error(lost_code_, lost_);
}

// One queue works in order, so a submission is done when its fence or any later fence is signalled.
uint64_t Recorder::completed() {
	for (const Slot& s : slots_) {
		if (!s.pending || s.value <= completed_) continue;
		const VkResult r = dev_.fn.vkGetFenceStatus(dev_.handle(), s.fence);
		check(r, "vkGetFenceStatus");
		if (r == VK_SUCCESS) completed_ = std::max(completed_, s.value);
	}
	return completed_;
}

bool Recorder::idle(uint32_t buffer) {
	const uint64_t last = mem_.at(buffer).last_use;
	return last <= completed_ || last <= completed();
}

uint64_t Recorder::wait_ns() const { return dev_.caps().is_cpu ? kWaitCpuNs : kWaitNs; }

void Recorder::timed_out() {
	hangs_ = true;
	lose(Code::Device, fmt::format("the device did not finish a submission within {} s; open it again, or another "
	                               "one with --device",
	                               wait_ns() / 1000000000));
}

void Recorder::wait_for(uint64_t value) {
	if (value <= completed_) return;
	for (const Slot& s : slots_) {
		if (s.value != value) continue;
		const VkResult r = dev_.fn.vkWaitForFences(dev_.handle(), 1, &s.fence, VK_TRUE, wait_ns());
		check(r, "vkWaitForFences");
		if (r == VK_TIMEOUT) timed_out();
	}
	completed_ = std::max(completed_, value);
}

Recorder::Slot& Recorder::free_slot() {
	Slot* oldest = nullptr;
	for (Slot& s : slots_)
		if (!oldest || s.value < oldest->value) oldest = &s;
	const bool done = oldest && (oldest->value <= completed_ || oldest->value <= completed());
	if (oldest && (done || slots_.size() >= kSlots)) {
		wait_for(oldest->value);
		finish(*oldest);
		return *oldest;
	}
	Slot s;
	try {
		create(s);
	} catch (...) { // an incomplete slot is destroyed
		destroy(s);
		throw;
	}
	return slots_.emplace_back(std::move(s));
}

void Recorder::create(Slot& s) {
	VkCommandPoolCreateInfo pool = make<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
	pool.queueFamilyIndex = dev_.queue_family();
	VK_TRY(dev_.fn.vkCreateCommandPool(dev_.handle(), &pool, nullptr, &s.pool));
	VkCommandBufferAllocateInfo info =
	    make<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
	info.commandPool = s.pool;
	info.commandBufferCount = 1;
	VK_TRY(dev_.fn.vkAllocateCommandBuffers(dev_.handle(), &info, &s.cmd));
	const VkFenceCreateInfo fence = make<VkFenceCreateInfo>(VK_STRUCTURE_TYPE_FENCE_CREATE_INFO);
	VK_TRY(dev_.fn.vkCreateFence(dev_.handle(), &fence, nullptr, &s.fence));
	if (dev_.caps().tick_ns > 0) {
		VkQueryPoolCreateInfo q = make<VkQueryPoolCreateInfo>(VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO);
		q.queryType = VK_QUERY_TYPE_TIMESTAMP;
		q.queryCount = kQueries;
		VK_TRY(dev_.fn.vkCreateQueryPool(dev_.handle(), &q, nullptr, &s.queries));
	}
}

void Recorder::begin() {
	if (slot_) return;
	if (!lost_.empty()) throw Error(lost_code_, lost_);
	Slot& s = free_slot();
	check(dev_.fn.vkResetFences(dev_.handle(), 1, &s.fence), "vkResetFences");
	check(dev_.fn.vkResetCommandPool(dev_.handle(), s.pool, 0), "vkResetCommandPool");
	VkCommandBufferBeginInfo info = make<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
	info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
	check(dev_.fn.vkBeginCommandBuffer(s.cmd, &info), "vkBeginCommandBuffer");
	s.value = next_value_;
	s.n_queries = 0;
	s.predicted_ms = s.overhead_ms = 0;
	s.stamps.clear();
	s.shares.clear();
	if (s.queries) {
		dev_.fn.vkCmdResetQueryPool(s.cmd, s.queries, 0, kQueries);
		dev_.fn.vkCmdWriteTimestamp2(s.cmd, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, s.queries, s.n_queries++);
	}
	slot_ = &s;
	bound_ = nullptr;
	bound_layout_ = VK_NULL_HANDLE;
	n_bound_ = 0;
}

void Recorder::stamp(const char* label, double bytes, const char* kernel) {
	if (!timing_ || !slot_->queries) return;
	slot_->stamps.push_back({label, kernel, bytes});
	dev_.fn.vkCmdWriteTimestamp2(slot_->cmd, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, slot_->queries, slot_->n_queries++);
	if (slot_->n_queries + 1 >= kQueries) submit();
}

void Recorder::submit() {
	if (!lost_.empty()) throw Error(lost_code_, lost_);
	if (!slot_) return;
	Slot& s = *slot_;
	if (!reads_.empty()) { // copies into host memory become visible to the host
		VkMemoryBarrier2 b = make<VkMemoryBarrier2>(VK_STRUCTURE_TYPE_MEMORY_BARRIER_2);
		b.srcStageMask = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
		b.srcAccessMask = VK_ACCESS_2_TRANSFER_WRITE_BIT;
		b.dstStageMask = VK_PIPELINE_STAGE_2_HOST_BIT;
		b.dstAccessMask = VK_ACCESS_2_HOST_READ_BIT;
		VkDependencyInfo info = make<VkDependencyInfo>(VK_STRUCTURE_TYPE_DEPENDENCY_INFO);
		info.memoryBarrierCount = 1;
		info.pMemoryBarriers = &b;
		dev_.fn.vkCmdPipelineBarrier2(s.cmd, &info);
	}
	if (s.queries) dev_.fn.vkCmdWriteTimestamp2(s.cmd, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, s.queries, s.n_queries++);
	slot_ = nullptr;
	check(dev_.fn.vkEndCommandBuffer(s.cmd), "vkEndCommandBuffer");
	VkCommandBufferSubmitInfo cmd = make<VkCommandBufferSubmitInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO);
	cmd.commandBuffer = s.cmd;
	VkSubmitInfo2 info = make<VkSubmitInfo2>(VK_STRUCTURE_TYPE_SUBMIT_INFO_2);
	info.commandBufferInfoCount = 1;
	info.pCommandBufferInfos = &cmd;
	VkSemaphoreSubmitInfo transfer = make<VkSemaphoreSubmitInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO);
	if (transfers_.wanted > transfers_.arrived) {
		transfer.semaphore = transfers_.semaphore;
		transfer.value = transfers_.arrived = transfers_.wanted;
		transfer.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
		info.waitSemaphoreInfoCount = 1;
		info.pWaitSemaphoreInfos = &transfer;
	}
	check(dev_.fn.vkQueueSubmit2(dev_.queue(), 1, &info, s.fence), "vkQueueSubmit2");
	s.pending = true;
	++next_value_;
	++op_; // nothing continues across submissions: later work is ordered after them
	++counters_.submits;
}

// Reads a finished submission's timestamps: times per label, and each pipeline's pace.
void Recorder::finish(Slot& s) {
	if (!s.pending) return;
	s.pending = false;
	if (!s.queries || s.n_queries < 2) return;
	std::vector<uint64_t>& t = ticks_;
	t.resize(s.n_queries);
	check(dev_.fn.vkGetQueryPoolResults(dev_.handle(), s.queries, 0, s.n_queries, t.size() * 8, t.data(), 8,
	                                    VK_QUERY_RESULT_64_BIT),
	      "vkGetQueryPoolResults");
	auto ms = [&](uint64_t from, uint64_t to) {
		return double((to - from) & dev_.caps().tick_mask) * dev_.caps().tick_ns * 1e-6;
	};
	const double total = ms(t.front(), t.back());
	counters_.longest_submit_ms = std::max(counters_.longest_submit_ms, total);
	for (size_t i = 0; i < s.stamps.size(); ++i) {
		const Stamp& st = s.stamps[i];
		auto it = std::find_if(times_.begin(), times_.end(), [&](const OpTime& o) { return o.op == st.label; });
		if (it == times_.end()) it = times_.insert(it, OpTime{st.label, 0, 0, 0});
		it->calls += 1;
		it->ms += ms(t[i], t[i + 1]);
		it->bytes += st.bytes;
		if (st.kernel && std::ranges::count(it->kernels, st.kernel) == 0) it->kernels.emplace_back(st.kernel);
	}
	double predicted = 0;
	for (const Share& h : s.shares) predicted += h.ms;
	if (predicted <= 0) return;
	// The submission tells by how much its predictions were wrong in total. Each pipeline's pace moves towards that by
	// the pipeline's share, so that after a few submissions with different mixes each has its own pace. A larger pace
	// is taken at once, a smaller one only in part, because only too long submissions end in a watchdog. Time that the
	// estimate of fixed costs does not explain counts as work.
	const double ratio = std::clamp((total - s.overhead_ms) / predicted, 0.01, 100.0);
	for (const Share& h : s.shares) {
		const double seen = h.pace * ratio, trust = h.ms / predicted * (seen > h.pipeline->pace ? 1.0 : 0.3);
		h.pipeline->pace = std::clamp(h.pipeline->pace + trust * (seen - h.pipeline->pace), 1e-4, 1e4);
	}
}

void Recorder::wait() {
	submit(); // waiting for recorded work that is not submitted would never end
	++counters_.waits;
	wait_for(next_value_ - 1);
	for (Slot& s : slots_) finish(s);
	deliver(next_value_ - 1);
	for (Staging& s : uploads_) s.used = 0;
	for (Staging& s : downloads_) s.used = 0;
	while (downloads_.size() > kDownloadBlocks) {
		mem_.destroy(downloads_.back().buffer);
		downloads_.pop_back();
	}
	collect();
}

void Recorder::deliver(uint64_t value) {
	std::erase_if(reads_, [&](const PendingRead& r) {
		if (r.value > value) return false;
		const BufferRec& b = mem_.at(r.staging);
		mem_.invalidate(b);
		std::memcpy(r.dst, b.mapped + r.at, r.bytes);
		return true;
	});
}

uint64_t Recorder::mark() {
	submit();
	return next_value_ - 1;
}

void Recorder::wait_until(uint64_t value) {
	if (!lost_.empty()) throw Error(lost_code_, lost_);
	wait_for(value);
	deliver(value);
}

void Recorder::retire(uint32_t id) noexcept {
	uint64_t last = mem_.at(id).last_use;
	if (const uint64_t n = mem_.at(id).transfer) {
		bool done = false;
		if (lost_.empty()) try { // a lost device is not waited for again
				wait_transfer(n);
				done = true;
			} catch (...) {}
		if (!done) last = UINT64_MAX; // the device may still copy: the buffer is destroyed when the device is idle
	}
	forget_buffer(id);
	if (last <= completed_)
		mem_.destroy(id);
	else
		retired_.emplace_back(id, last);
}

void Recorder::forget_buffer(uint32_t id) noexcept {
	std::erase_if(pending_, [&](const Access& a) { return a.buffer == id; });
	if (!sets_.empty() || n_bound_) forget_sets();
}

void Recorder::collect() {
	std::erase_if(retired_, [&](const auto& r) {
		if (r.second > completed_) return false;
		mem_.destroy(r.first);
		return true;
	});
	std::erase_if(old_pools_, [&](const OldPools& o) {
		if (o.value > completed_) return false;
		for (VkDescriptorPool p : o.pools) dev_.fn.vkDestroyDescriptorPool(dev_.handle(), p, nullptr);
		return true;
	});
}

// ---- staging

// Bytes of a new block. Where the device has the only heap, staging shares it with weights and cache.
uint64_t Recorder::staging_block() const {
	return std::clamp(dev_.caps().heap_bytes / 64, kSmallStagingBlock, kStagingBlock);
}

// A block with room behind s.used for `bytes`, or for a whole block of them.
Recorder::Staging& Recorder::staging(std::vector<Staging>& list, Mem m, uint64_t bytes) {
	uint64_t block = staging_block();
	bytes = std::min(bytes, block);
	for (Staging& s : list)
		if (s.used + bytes <= mem_.at(s.buffer).size) return s;
	if (m == Mem::Upload) { // a block whose copies are done is reused from its start
		for (Staging& s : list)
			if (idle(s.buffer) && bytes <= mem_.at(s.buffer).size) {
				s.used = 0;
				return s;
			}
		if (list.size() >= kUploadBlocks) {
			submit();
			Staging& s = *std::min_element(list.begin(), list.end(), [&](const Staging& a, const Staging& b) {
				return mem_.at(a.buffer).last_use < mem_.at(b.buffer).last_use;
			});
			wait_for(mem_.at(s.buffer).last_use);
			s.used = 0;
			return s;
		}
	}
	for (bool waited = false;;) {
		try {
			return list.emplace_back(
			    Staging{mem_.create(block, m, m == Mem::Upload ? "upload staging" : "readback staging"), 0});
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory || (waited && list.empty() && block <= kSmallStagingBlock)) throw;
		}
		if (!waited)
			wait(); // then all blocks can be used again, and memory that work under way still used is free
		else
			block = std::max(block / 2, kSmallStagingBlock);
		waited = true;
		if (!list.empty()) return list.front();
	}
}

void Recorder::write(uint32_t dst, uint64_t at, std::span<const std::byte> src) {
	KV_ASSERT(at + src.size() <= mem_.at(dst).bytes);
	if (src.empty()) return;
	if (const BufferRec& b = mem_.at(dst); b.mapped && b.coherent && idle(dst)) { // not in use: no copy needed
		std::memcpy(b.mapped + at, src.data(), src.size());
		return;
	}
	while (!src.empty()) {
		Staging& s = staging(uploads_, Mem::Upload, src.size());
		begin();
		BufferRec &from = mem_.at(s.buffer), &to = mem_.at(dst);
		const uint64_t n = std::min<uint64_t>(src.size(), from.size - s.used);
		std::memcpy(from.mapped + s.used, src.data(), n);
		transfer_hazards({{dst, at, at + n, true}});
		const VkBufferCopy region{s.used, at, n};
		dev_.fn.vkCmdCopyBuffer(slot_->cmd, from.handle, to.handle, 1, &region);
		from.last_use = to.last_use = to.filled = next_value_;
		s.used = std::min(align_up(s.used + n, 16), from.size);
		stamp("write", double(n));
		at += n;
		src = src.subspan(n);
	}
}

void Recorder::read(uint32_t src, uint64_t at, std::span<std::byte> dst) {
	KV_ASSERT(at + dst.size() <= mem_.at(src).bytes);
	const size_t before = reads_.size();
	try {
		read_pieces(src, at, dst);
	} catch (...) { // the caller's memory may be freed before the next wait()
		reads_.resize(std::min(before, reads_.size()));
		throw;
	}
}

void Recorder::read_pieces(uint32_t src, uint64_t at, std::span<std::byte> dst) {
	while (!dst.empty()) {
		Staging& s = staging(downloads_, Mem::Readback, dst.size());
		begin();
		BufferRec &from = mem_.at(src), &to = mem_.at(s.buffer);
		const uint64_t n = std::min<uint64_t>(dst.size(), to.size - s.used);
		transfer_hazards({{src, at, at + n, false}});
		const VkBufferCopy region{at, s.used, n};
		dev_.fn.vkCmdCopyBuffer(slot_->cmd, from.handle, to.handle, 1, &region);
		from.last_use = to.last_use = next_value_;
		reads_.push_back({s.buffer, s.used, dst.data(), n, next_value_});
		s.used = std::min(align_up(s.used + n, 16), to.size);
		stamp("read", double(n));
		at += n;
		dst = dst.subspan(n);
	}
}

void Recorder::time_dispatches(bool on) {
	if (on && dev_.caps().tick_ns <= 0)
		fail(Code::Unsupported, "this device's queue has no timestamps (timestampValidBits is 0)");
	timing_ = on;
}

std::vector<OpTime> Recorder::op_times(bool reset) {
	std::vector<OpTime> out = times_;
	if (reset) times_.clear();
	return out;
}

} // namespace kvrun::vk
