// The cpu backend: plain loops on host memory, the definition every other backend is tested against.
#pragma once
#include "backends/backend.h"
#include "backends/id_table.h"
#include "backends/op_walk.h"
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

namespace kvrun {

// Words [at, at + n) of pool or table memory.
inline const uint32_t* page_words(const uint32_t* pool, const View& v, uint32_t at, uint32_t n) {
	KV_ASSERT(at <= v.elements() && n <= v.elements() - at);
	return pool + at;
}

// Element i of an array of work items.
template <class W> W work_item(const uint32_t* words, uint32_t i) {
	W w;
	std::memcpy(&w, words + size_t(i) * (sizeof(W) / 4), sizeof(W));
	return w;
}

class CpuBackend : public Backend {
 public:
	explicit CpuBackend(bool poison) : poison_(poison) {}
	const char* name() const override { return "cpu"; }
	DeviceInfo info() const override;

	Buffer alloc(size_t bytes, Mem mem, const char* label) override;
	void free(uint32_t id) noexcept override;
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType, uint32_t cols) const override;
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override;

	void run(const Op&) override;
	std::span<std::byte> host_bytes(const Buffer& b) override { return {bytes_at(b, 0, b.bytes()), b.bytes()}; }
	uint64_t transfer(View dst, View src) override { return copy(dst, src), 0; }
	bool arrive(uint64_t) override { return true; }

	void at_layer(uint32_t) override {}
	void submit() override {} // an op is done when its call returns
	void wait() override;
	uint64_t mark() override { return 0; }
	void wait_for(uint64_t) override { wait(); }
	bool done(uint64_t) override { return true; }
	std::vector<OpTime> op_times(bool reset) override;
	void time_ops(bool on) override { timing_ = on; }

 private:
	struct FreeHost {
		void operator()(void* p) const noexcept { std::free(p); }
	};
	struct Block {                              // one allocation
		std::unique_ptr<void, FreeHost> memory; // what calloc returned
		std::byte* data = nullptr;              // the first 64-byte boundary in it
		size_t bytes = 0;                       // as requested
	};
	struct PendingRead {
		std::span<std::byte> dst;     // memory of the caller, filled by wait()
		std::vector<std::byte> bytes; // the bytes at the time of read()
	};
	class Timed { // logs an op before it runs; times it while in scope
	 public:
		Timed(CpuBackend&, const Op&);
		~Timed();
		Timed(const Timed&) = delete;

	 private:
		CpuBackend& backend_;
		const Op& op_;
		std::chrono::steady_clock::time_point start_;
	};

	// The definition of every op. Arguments have been checked.
#define KV_COMPUTES(O) void compute(const op::O&);
	KV_EACH_OP(KV_COMPUTES)
#undef KV_COMPUTES
	void compute_removal(const op::DeltaRule&); // with DeltaGates::removal

	std::byte* bytes_at(const Buffer& b, size_t at, size_t n) const; // asserts that the range lies in the buffer
	// Elements of a plain view; T must be as wide as the view's element type (uint16_t for F16).
	template <class T> T* data(const View& v) const {
		KV_ASSERT(v.buf && !is_quantised(v.type) && dtype_info(v.type).bytes == sizeof(T) && v.at % 4 == 0);
		return reinterpret_cast<T*>(bytes_at(*v.buf, v.at, v.elements() * sizeof(T)));
	}
	const std::byte* weight_rows(const View& w) const;                            // row r is at r * weight_row_bytes()
	static void weight_row(DType, const std::byte* row, float* out, size_t cols); // one of them as floats
	void project(const Proj&, View x, float* out, bool add);
	void project_experts(const Proj&, View x, const ExpertRows&, float* out);
	template <class F> void each_slot(const KvRows& kv, uint32_t n, const KvDst& pages, F f);
	void pack_keys(const KvRows& src, const PackArgs&, const PackWork&, const uint32_t* sources);
	void pack_values(const KvRows& src, const PackArgs&, const PackWork&, const uint32_t* sources);
	const uint16_t* halves(const View& words, uint32_t at, uint32_t n) const { // n halves from word `at` of u32 memory
		return reinterpret_cast<const uint16_t*>(page_words(data<uint32_t>(words), words, at, (n + 1) / 2));
	}
	struct PageShape {
		uint32_t n_kv_heads, head_dim;
	};
	// Converts a page of one kv head, given by its table entry, to floats (page, head_dim); values of tokens that are
	// not live are undefined.
	void load_k(const PageShape&, const AttendGroup&, const uint32_t* entry, uint32_t head, float* tile) const;
	void load_v(const PageShape&, const AttendGroup&, const uint32_t* entry, uint32_t factors_at, uint32_t head,
	            float* tile) const;
	void attend_pages(const View& q, const KvRead&);
	void attend_work(const View& q, const KvRead&, const AttendGroup&, const AttendWork&);

	IdTable<Block> blocks_;               // by buffer id
	std::vector<PendingRead> reads_;      // since the last wait()
	std::vector<float> row_;              // one dequantised weight row
	std::map<std::string, OpTime> times_; // by op
	bool poison_;                         // new memory is NaN
	bool timing_ = false;
};

struct ScoreOf {          // a score of attention from q . k
	float scale, softcap; // softcap: as in Softmax
	float operator()(float product) const {
		const float s = scale * product;
		return softcap > 0 ? softcap * std::tanh(s / softcap) : s;
	}
};

// Sum of a[i] * b[i] in 16 lanes added pairwise: one fixed order, so that a row's result never depends on the rest of
// the call, and one that the compiler can keep in vector registers.
inline float dot(const float* a, const float* b, size_t n) {
	constexpr size_t kLanes = 16;
	float lane[kLanes] = {};
	size_t i = 0;
	for (; i + kLanes <= n; i += kLanes)
		for (size_t j = 0; j < kLanes; ++j) lane[j] += a[i + j] * b[i + j];
	for (size_t j = 0; i + j < n; ++j) lane[j] += a[i + j] * b[i + j];
	for (size_t half = kLanes / 2; half; half /= 2)
		for (size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
	return lane[0];
}

} // namespace kvrun
