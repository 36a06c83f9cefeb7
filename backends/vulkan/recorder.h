// Records dispatches and copies: descriptors, hazards to barriers, timestamps, submissions bounded in time.
#pragma once
#include "backends/vulkan/kernels.h"
#include "backends/vulkan/memory.h"
#include <deque>
#include <memory>
#include <unordered_map>

namespace kvrun::vk {

struct Bind {            // range of one binding; an empty one (bytes 0) is bound to 256 zero bytes
	uint32_t buffer = 0; // Buffer id
	uint64_t at = 0;     // bytes, a multiple of 4 and of the size of the shader's array elements
	uint64_t bytes = 0;
};
inline Bind bind(const View& v, uint64_t bytes) { return v ? Bind{v.buf->id(), v.at, bytes} : Bind{}; }
inline Bind bind(const View& v) { // plain types only; the size of weights is computed elsewhere
	KV_ASSERT(!is_quantised(v.type));
	return bind(v, v.elements() * dtype_info(v.type).bytes);
}

struct Work {          // of one dispatch: label and numbers for times, limits and --ops
	const char* label; // op, e.g. "matmul"; a literal
	double bytes = 0;  // read + written, at least
	double flops = 0;
	bool continues = false; // writes other elements than the previous dispatch of the same op: no barrier between them,
	                        // unless a submission has ended
};

class Recorder {
 public:
	// submit_ms: target time of one submission.
	Recorder(Device&, Memory&, Kernels&, double submit_ms);
	~Recorder();
	Recorder(const Recorder&) = delete;

	// `push` is a struct of shaders/shared/push.h; its `at` is filled here.
	template <class Push>
	void dispatch(Pipeline& p, Push push, std::initializer_list<Bind> binds, Groups g, const Work& w) {
		dispatch(p, push, std::span(binds.begin(), binds.size()), g, w);
	}
	template <class Push> void dispatch(Pipeline& p, Push push, std::span<const Bind> binds, Groups g, const Work& w) {
		static_assert(sizeof(Push) <= 128 && sizeof(Push) % 4 == 0);
		dispatch_bytes(p, &push, sizeof(Push), push.at, binds, g, w);
	}
	void fill(uint32_t buffer, uint64_t at, uint64_t bytes, uint32_t word);
	void copy(const Bind& dst, const Bind& src, const char* label = "copy");
	void write(uint32_t dst, uint64_t at, std::span<const std::byte> src);
	void read(uint32_t src, uint64_t at, std::span<std::byte> dst); // dst is filled by wait()
	void retire(uint32_t buffer) noexcept;                          // destroyed when no submission uses it any more

	// A copy concurrent with enqueued work if the device has a transfer queue; else an ordinary copy, and returns 0.
	uint64_t transfer(const Bind& dst, const Bind& src);
	void arrive(uint64_t transfer); // work recorded from here on runs after it

	void submit();
	void wait();
	uint64_t mark();                // submits; the number of the last submission
	void wait_until(uint64_t mark); // waits until that one is done; fills the reads in it and in earlier ones
	bool done(uint64_t mark) { return mark <= completed_ || mark <= completed(); }
	bool holds_retired() const { return !retired_.empty(); } // buffers that work under way still uses
	void collect();                                          // destroys retired buffers whose submissions are done
	void time_dispatches(bool on);
	std::vector<OpTime> op_times(bool reset);
	bool idle(uint32_t buffer); // no recorded or running work uses it

	struct Counters {
		uint64_t submits = 0, waits = 0, dispatches = 0, barriers = 0, descriptor_updates = 0, split_dispatches = 0;
		double longest_submit_ms = 0; // by timestamps
	};
	const Counters& counters() const { return counters_; }
	void reset_counters() { counters_ = {}; }

 private:
	struct Range {
		uint32_t buffer;
		uint64_t begin, end; // range in bytes
		bool write;
	};
	struct Access { // one access since the last barrier
		uint32_t buffer;
		uint64_t begin, end; // bytes
		bool write, transfer;
		uint64_t op; // dispatches that continue each other share a number
	};
	struct Stamp {                  // one timed dispatch: from the previous timestamp to its own
		const char *label, *kernel; // kernel: null for copies
		double bytes;
	};
	struct Share { // one dispatch's part of a submission's predicted time
		Pipeline* pipeline;
		double ms, pace; // predicted, without fixed costs; the pace it was predicted with
	};
	struct Slot { // one command buffer and its objects
		VkCommandPool pool = VK_NULL_HANDLE;
		VkCommandBuffer cmd = VK_NULL_HANDLE;
		VkQueryPool queries = VK_NULL_HANDLE;
		VkFence fence =
		    VK_NULL_HANDLE; // not a timeline semaphore: GPU-assisted validation (1.3.239) does not support those
		uint64_t value = 0; // number of its submission, counted from 1; 0: never used
		uint32_t n_queries = 0;
		bool pending = false; // submitted, timestamps not read yet
		double predicted_ms = 0;
		double overhead_ms = 0; // part of predicted_ms that does not depend on pace
		std::vector<Stamp> stamps;
		std::vector<Share> shares;
	};
	struct Staging { // one host-visible block, filled front to back, reused when its submissions are done
		uint32_t buffer;
		uint64_t used = 0; // bytes
	};
	struct PendingRead {
		uint32_t staging;
		uint64_t at;
		std::byte* dst;
		uint64_t bytes;
		uint64_t value; // submission that contains it
	};
	struct Transfers { // state of their queue
		VkCommandPool pool = VK_NULL_HANDLE;
		VkSemaphore semaphore = VK_NULL_HANDLE; // timeline: the number of the last transfer that is done
		std::deque<VkCommandBuffer> cmds;       // transfer n uses number (n - 1) % kTransfers
		uint64_t last = 0, arrived = 0;         // last begun; last that submissions have waited for
		uint64_t wanted = 0;                    // transfer that the next submission waits for
	};
	struct SetKey {
		VkDescriptorSetLayout layout;
		uint32_t n;
		VkDescriptorBufferInfo info[kMaxBindings];
		bool operator==(const SetKey& o) const;
	};
	struct SetHash {
		size_t operator()(const SetKey&) const;
	};
	struct OldPools { // descriptor pools that submissions up to `value` may still use
		std::vector<VkDescriptorPool> pools;
		uint64_t value;
	};

	void dispatch_bytes(Pipeline&, void* push, uint32_t push_bytes, uint32_t* at, std::span<const Bind>, Groups,
	                    const Work&);
	void check_groups(const Pipeline&, Groups) const;
	uint32_t resolve(const Pipeline&, std::span<const Bind>, uint32_t* at); // fills infos_
	void hazards(const Pipeline&, std::span<const Bind>, bool continues);
	void transfer_hazards(std::initializer_list<Range>);
	void barrier(bool for_transfer);
	void bind_descriptors(const Pipeline&, uint32_t n);
	VkDescriptorSet cached_set(const SetKey&, const Reflection&);
	uint32_t describe(const Reflection&, VkDescriptorSet,
	                  VkWriteDescriptorSet* out) const; // infos_ and views_ as writes
	void forget_sets();
	void forget_buffer(uint32_t) noexcept;
	void begin();
	void stamp(const char* label, double bytes, const char* kernel = nullptr);
	void finish(Slot&); // reads its timestamps
	Slot& free_slot();
	void create(Slot&);
	void destroy(Slot&);
	void release();
	void wait_for(uint64_t value);
	uint64_t completed();
	void deliver(uint64_t value); // delivers the reads of submissions up to it
	void create_transfers();
	void wait_transfer(uint64_t n); // waits for a limited time
	VkResult wait_semaphore(uint64_t transfer, uint64_t ns);
	bool settle() noexcept; // returns false if running work does not end
	void read_pieces(uint32_t src, uint64_t at, std::span<std::byte> dst);
	uint64_t staging_block() const;
	Staging& staging(std::vector<Staging>&, Mem, uint64_t bytes);
	void check(VkResult, const char* call); // of calls that may lose work: every later call fails with the first reason
	[[noreturn]] void lose(Code, std::string why);
	uint64_t wait_ns() const; // for one submission
	[[noreturn]] void timed_out();

	Device& dev_;
	Memory& mem_;
	Kernels& kernels_;
	double target_ms_;
	bool timing_ = false;
	uint64_t next_value_ = 1; // of the submission being recorded
	uint64_t completed_ = 0;  // as last known
	std::string lost_;        // why the device is lost; empty while it works
	Code lost_code_ = Code::Device;
	bool hangs_ = false; // a wait for the device would not end
	std::deque<Slot> slots_;
	Slot* slot_ = nullptr; // being recorded; null between submissions
	const Pipeline* bound_ = nullptr;
	VkPipelineLayout bound_layout_ = VK_NULL_HANDLE;
	uint32_t n_bound_ = 0; // descriptors pushed last in this command buffer
	VkDescriptorBufferInfo bound_infos_[kMaxBindings] = {}, infos_[kMaxBindings] = {};
	VkBufferView views_[kMaxBindings] = {}; // of the texel buffers among infos_
	std::vector<Access> pending_;
	bool stale_for_transfer_ = false; // there was work that compute has been synchronised with, but copies have not
	uint64_t op_ = 0;
	std::vector<Staging> uploads_, downloads_;
	std::vector<PendingRead> reads_;
	Transfers transfers_;
	std::vector<std::pair<uint32_t, uint64_t>> retired_; // buffer, submission
	std::unordered_map<SetKey, VkDescriptorSet, SetHash> sets_;
	std::vector<VkDescriptorPool> pools_;
	uint32_t sets_left_ = 0; // in pools_.back()
	std::vector<OldPools> old_pools_;
	std::vector<OpTime> times_;
	std::vector<uint64_t> ticks_; // scratch of finish()
	uint32_t zeros_ = 0;          // buffer for empty binds
	Counters counters_;
};

} // namespace kvrun::vk
