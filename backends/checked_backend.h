// CheckedBackend: runs every op on two backends in lock-step, compares, scans for NaN, dumps.
#pragma once
#include "backends/backend.h"
#include "backends/tolerance.h"
#include <deque>
#include <map>

namespace kvrun {

// Mirrors every buffer in `reference`, runs each op on both, compares, and carries on with inner's result on both, so
// that the first difference is the op that made it. Without a reference it only checks shapes, scans and dumps.
// With an observer a difference is told and does not stop: the reference's result is carried on with on both, so that
// later ops are judged by themselves.
// dump: folder[:op[:layer]]; the plain inputs and the outputs of each op go to folder/NUMBER_Llayer_op_name.npy.
class CheckedBackend final : public Backend {
 public:
	CheckedBackend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference, const std::string& dump,
	               OpObserver observer = {});

	const char* name() const override { return inner_->name(); }
	DeviceInfo info() const override { return inner_->info(); }
	Buffer alloc(size_t bytes, Mem mem, const char* label) override;
	void free(uint32_t id) noexcept override;
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType t, uint32_t cols) const override { return inner_->weight_row_bytes(t, cols); }
	bool arrange_weight(DType t, uint32_t cols, std::span<const std::byte> src,
	                    std::span<std::byte> dst) const override {
		return inner_->arrange_weight(t, cols, src, dst);
	}
	void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src,
	                  std::span<const std::byte> arranged) override;

	void embed(View out, View table, View tokens) override;
	void rmsnorm(View out, View x, View w, float eps) override;
	void layer_norm(View out, View x, View w, View b, float eps) override;
	void activate(View out, View x, View y, const Elementwise&) override;
	void matmul(std::span<const Proj>, View x, Epilogue, bool decode) override;
	void norm_matmul(std::span<const Proj>, View h, View x, View w, float eps, Epilogue, bool decode) override;
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
	std::span<std::byte> host_bytes(const Buffer& b) override { return inner_->host_bytes(*inner(words_of(b)).buf); }
	uint64_t transfer(View dst, View src) override;
	bool arrive(uint64_t transfer) override { return inner_->arrive(transfer); }

	void at_layer(uint32_t layer) override;
	void submit() override { inner_->submit(); }
	void wait() override { inner_->wait(); }
	uint64_t mark() override { return inner_->mark(); }
	void wait_for(uint64_t mark) override { inner_->wait_for(mark); }
	bool done(uint64_t mark) override { return inner_->done(mark); }
	std::vector<OpTime> op_times(bool reset) override { return inner_->op_times(reset); }
	void time_ops(bool on) override { inner_->time_ops(on); }

 private:
	struct Mirror { // one allocation of the caller
		Buffer inner, reference;
	};
	struct Weight { // rows written by write_weight(); the two backends may arrange them differently
		size_t end; // one past its last byte in the inner buffer
		DType type;
		uint32_t cols;
		Buffer reference; // all rows, from byte 0
	};
	struct Named {
		const char* name; // as in backend.h
		View view;        // the caller's
	};
	struct Output {
		const char* name;
		View view; // the caller's; elements compared
		Tolerance tolerance;
		bool cache = false; // K or V memory, f16 (or pairs of it): what nobody wrote may hold anything, equal on both
		uint32_t bits = 0;  // of packed codes in u32 memory: a code may be one off where a value lies between two;
		                    // 32: whole words, which must be equal
	};
	struct Map; // the caller's views -> those of one of the two backends

	View inner(const View& v) const;
	View reference(const View& v) const;
	View reference_weight(const View& w) const;
	template <class F> void run(const char* op, std::string shape, std::vector<Named> in, std::vector<Output> out, F f);
	template <class F> void multiply(std::span<const Proj>, View x, View norm, Epilogue, bool decode, F f);
	void compare_output(const char* op, const std::string& shape, const Output&);
	std::vector<uint32_t> fetch_words(const View& v); // of the caller's u32 view
	std::vector<Output> cache_outputs(const KvDst&, uint32_t n_kv_heads, uint32_t head_dim);
	// The words of pool memory from the first to the last that work items write; `field` of each item (`stride` words)
	// says where its `n` words begin, kSkip: nowhere.
	void add_span(std::vector<Output>&, const char* name, const View& pool, std::span<const uint32_t> work,
	              size_t stride, size_t field, uint32_t n, uint32_t bits);
	std::vector<std::byte> fetch(Backend&, const View& v); // submits and waits; v of that backend
	void carry_on(const Output&, std::span<const std::byte> bytes, bool wrong);
	void dump(const char* op, const char* name, const View& v);
	bool dumps(const char* op) const;

	std::unique_ptr<Backend> inner_, reference_; // reference_ may be null
	std::deque<Mirror> mirrors_;                 // by buffer id - 1; addresses stay
	std::vector<uint32_t> free_ids_;
	std::map<std::pair<uint32_t, size_t>, Weight> weights_; // by buffer id, first byte in the inner buffer
	uint32_t layer_ = 0;                                    // of the ops that follow
	bool in_layer_ = false;                                 // at_layer() was called
	uint32_t n_ops_ = 0;                                    // run so far; numbers the dumps
	std::string dump_dir_, dump_op_, dump_layer_;           // empty op or layer: all
	OpObserver observer_;
};

std::string shape_text(const View&); // (rows, cols) for messages

std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference,
                                              const std::string& dump = "", OpObserver observer = {});

} // namespace kvrun
