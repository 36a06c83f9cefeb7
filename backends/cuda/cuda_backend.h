// The CUDA backend: memory, one stream in which everything runs in order, and the ops.
#pragma once
#include "backends/backend.h"
#include "backends/cuda/runtime.h"
#include "backends/id_table.h"
#include "backends/op_walk.h"
#include <map>
#include <string>
#include <vector>

namespace kvrun::cuda {

struct OpenOptions {
	int device = 0;
	bool poison = false; // fill new memory with NaN
};

constexpr uint32_t kMostBlocks = 65535; // of a grid in y and z
inline uint32_t groups(uint64_t n, uint32_t size) { return uint32_t((n + size - 1) / size); }

class CudaBackend : public Backend {
 public:
	// `runtime` must outlive the backend. Throws Error{Device} when the device cannot be used.
	CudaBackend(const Runtime& runtime, const Kernels& kernels, const char* name, DeviceInfo info, OpenOptions);
	~CudaBackend() override;
	const char* name() const override { return name_; }
	DeviceInfo info() const override;

	Buffer alloc(size_t bytes, Mem mem, const char* label) override;
	void free(uint32_t id) noexcept override;
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType, uint32_t cols) const override;
	bool arrange_weight(DType, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override;
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override;

	void run(const Op&) override;
	std::span<std::byte> host_bytes(const Buffer& b) override { return {bytes_at(b, 0, b.bytes()), b.bytes()}; }
	uint64_t transfer(View dst, View src) override { // in order in the one stream
		check_and_count(dst, src);
		return copy(dst, src), 0;
	}
	bool arrive(uint64_t) override { return true; }

	void at_layer(uint32_t) override {}
	void submit() override; // work is submitted as it is enqueued
	void wait() override;
	uint64_t mark() override { return submit(), 0; }
	void wait_for(uint64_t) override { wait(); }
	bool done(uint64_t) override { return false; }
	std::vector<OpTime> op_times(bool reset) override;
	void time_ops(bool on) override { timing_ = on; }

 private:
	struct Block { // one allocation
		std::byte* data = nullptr;
		size_t bytes = 0;  // bytes asked for
		bool host = false; // pinned host memory
	};
	struct PendingRead {
		std::span<std::byte> dst; // the caller's memory, filled by wait()
		const std::byte* staged;
	};
	struct Staging { // host memory for copies to and from the device
		std::byte* data = nullptr;
		size_t bytes = 0, used = 0;
	};
	struct Timed { // a launch between two events
		const char* op;
		double bytes;
		void *from, *to;
		bool first; // first launch of its op
	};
	struct OpInfo { // of one op, or of a further launch of it
		const char* op;
		double bytes; // read + written
		bool first = true;
	};

#define KV_COMPUTES(O) void compute(const op::O&);
	KV_EACH_OP(KV_COMPUTES)
#undef KV_COMPUTES

	StatePlaces places(const StateRows&);
	void check(int result,
	           const char* call); // for calls that may lose work: every later call then fails with the first reason
	[[noreturn]] void lose(Code, std::string why);
	void use() const; // throws if the device was lost; else makes it current for this thread
	[[noreturn]] void refuse(size_t bytes, const char* label, int result);
	std::byte* stage(size_t bytes); // room in host memory until the next wait
	void wait_stream();             // also makes all staging free again
	void release() noexcept;
	std::byte* bytes_at(const Buffer& b, size_t at, size_t n) const; // asserts that the range lies in the buffer
	template <class T> T* data(const View& v) const;                 // of a plain view; null for an empty view
	const uint32_t* half_words(const View& v) const;                 // of an f16 view
	Weight weight(const View& w);
	const uint32_t* grids();
	void* new_event();
	void enqueue(const KernelEntry&, Dim grid, uint32_t threads, void* args, const OpInfo&);
	template <class Args>
	void launch(const Kernel<Args>& k, Dim grid, uint32_t threads, Args args, const OpInfo& info) {
		enqueue(k, grid, threads, &args, info);
	}
	void attend_pages(const char* op, View q, const KvRead&);
	void merge_parts(const char* op, View out, View lse, const KvRead&);
	void pack_side(const KvRows& src, const PackArgs&, bool is_k);
	void move_rows(const Kernel<KvStoreArgs>&, const KvRows&, uint32_t n, const KvDst& pages);

	const Runtime& rt_;
	const Kernels kernels_;
	const char* name_;
	DeviceInfo info_;
	OpenOptions options_;
	void* stream_ = nullptr;
	IdTable<Block> blocks_;          // by buffer id
	std::vector<Staging> staging_;   // the last one is being filled
	std::vector<PendingRead> reads_; // since the last wait
	std::vector<void*> events_;      // events to reuse
	std::vector<Timed> timed_;       // since the last wait
	std::map<std::string, OpTime> times_;
	bool timing_ = false;
	Buffer grids_;     // see grids()
	std::string lost_; // why the device is gone; empty while it works
	Code lost_code_ = Code::Device;
};

template <class T> T* CudaBackend::data(const View& v) const {
	if (!v.buf) return nullptr;
	KV_ASSERT(!is_quantised(v.type) && dtype_info(v.type).bytes == sizeof(T) && v.at % 4 == 0);
	return reinterpret_cast<T*>(bytes_at(*v.buf, v.at, v.elements() * sizeof(T)));
}

} // namespace kvrun::cuda
