// The cpu backend: plain loops on host memory, the definition every other backend is tested against.
#pragma once
#include "backends/backend.h"
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
	void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src,
	                  std::span<const std::byte> arranged) override;

	void embed(View out, View table, View tokens) override;
	void rmsnorm(View out, View x, View w, float eps) override;
	void layer_norm(View out, View x, View w, View b, float eps) override;
	void activate(View out, View x, View y, const Elementwise&) override;
	void matmul(std::span<const Proj>, View x, Epilogue, bool decode) override;
	void route(View ids, View weights, View logits, const RouteArgs&) override;
	void sort_slots(View tiles, View ids, uint32_t n_experts) override;
	void expert_matmul(std::span<const Proj>, View x, const ExpertRows&, Epilogue, bool decode) override;
	void expert_sum(View x, View y, View weights) override;
	void rope_store(View q, View k, View v, const RopeArgs&, const HeadNorm&, const KvDst& dst) override;
	void kv_store(const KvRows& src, uint32_t n, const KvDst& dst) override;
	void kv_load(const KvRows& dst, uint32_t n, const KvDst& src) override;
	void attend(View out, View lse, View q, const KvRead&) override;
	void attend_prompt(View out, View lse, View q, const KvRows&, const KvRead* older) override;
	void copy(View dst, View src) override;
	void kv_pack(const KvRows& src, const PackArgs&) override;
	void kv_block(const KvRows& src, const BlockArgs&) override;
	void score_prompt(View score, View q, View lse, View rows, const KvRows& kv, Saliency) override;
	void score_slots(View q, View lse, const ScoreArgs&) override;
	void channel_max(View out, View x) override;
	void kv_balance(View out, View q_max, const KvRows& k, uint32_t n) override;
	void weigh(View q, View lse, const WeighArgs&) override;
	void top_k(View picks, View weight, View work) override;
	void candidates(View list, View block_max, View x, uint32_t k) override;
	void scatter(View words, View list) override;
	void part_share(View out, View parts, View work) override;
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
		size_t bytes = 0;                       // asked for
	};
	struct PendingRead {
		std::span<std::byte> dst;     // the caller's, filled by wait()
		std::vector<std::byte> bytes; // as they were when read() was called
	};
	class Op { // logs an op before it runs, times it while in scope
	 public:
		Op(CpuBackend& b, const char* op, const View& out, double bytes);
		~Op();
		Op(const Op&) = delete;
		void add_bytes(double bytes) { bytes_ += bytes; }

	 private:
		CpuBackend& backend_;
		const char* op_;
		double bytes_; // read + written
		std::chrono::steady_clock::time_point start_;
	};

	std::byte* bytes_at(const Buffer& b, size_t at, size_t n) const; // asserts that the range lies in the buffer
	// Elements of a plain view; T must be as wide as the view's element type (uint16_t for F16).
	template <class T> T* data(const View& v) const {
		KV_ASSERT(v.buf && !is_quantised(v.type) && dtype_info(v.type).bytes == sizeof(T) && v.at % 4 == 0);
		return reinterpret_cast<T*>(bytes_at(*v.buf, v.at, v.elements() * sizeof(T)));
	}
	const std::byte* weight_rows(const View& w) const; // row r is at r * weight_row_bytes()
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
	// A page of one kv head, by its entry in the tables -> floats (page, head_dim); tokens that are not live may come
	// out as anything.
	void load_k(const PageShape&, const AttendGroup&, const uint32_t* entry, uint32_t head, float* tile) const;
	void load_v(const PageShape&, const AttendGroup&, const uint32_t* entry, uint32_t factors_at, uint32_t head,
	            float* tile) const;
	double attend_pages(View q, const KvRead&); // bytes of K and V read
	void attend_work(View q, const KvRead&, const AttendGroup&, const AttendWork&);

	std::vector<Block> blocks_;           // by buffer id - 1
	std::vector<uint32_t> free_ids_;      // ids whose block was freed
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

// Sum of a[i] * b[i] in 16 lanes added pairwise: one fixed order, so that a row's result never depends on what else is
// in the call, and one the compiler can keep in vector registers.
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
