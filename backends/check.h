// Shape checks of every op, tolerances of every op, and CheckedBackend: lock-step comparison, NaN scan, dumps.
#pragma once
#include "backends/backend.h"
#include <deque>
#include <map>
#include <string_view>

namespace kvrun {

// ---- shape checks: throw Error{Invalid} with the condition that does not hold; every backend may call them

void check_embed(const View& out, const View& table, const View& tokens);
void check_rmsnorm(const View& out, const View& x, const View& w);
void check_matmul(std::span<const Proj>, const View& x, Epilogue, bool decode);
void check_rope_store(const View& q, const View& k, const View& v, const RopeArgs&, const HeadNorm&, const KvDst&);
void check_kv_store(const PromptKv& rows, uint32_t n, const KvDst&); // and kv_load()
void check_attend(const View& out, const View& q, const KvRead&);
void check_attend_prompt(const View& out, const View& q, const PromptKv&, const KvRead* older);
void check_copy(const View& dst, const View& src);
void check_kv_pack(const PromptKv& src, const PackArgs&);
void check_kv_block(const PromptKv& src, const BlockArgs&);
void check_score_prompt(const View& score, const View& q, const View& rows, const PromptKv&);
void check_score_slots(const View& score, const View& q, const View& rows, const View& lse, const KvRead& f16);
void check_channel_max(const View& out, const View& x);
void check_kv_balance(const View& out, const View& q_max, const PromptKv& k, uint32_t n);

// ---- how far a result may be from the cpu backend's: |x - ref| <= rel * |ref| + slack * rms(ref)

struct Tolerance {
	double rel, slack;
};
// By what is computed: embed, rmsnorm, matvec (decode), matmul (prompt), swiglu, rope, kv (K and V as f16), attend,
// attend_prompt, attend packed, copy. Throws Error{NotFound} for anything else.
Tolerance tolerance(std::string_view what);

struct Difference {
	size_t n = 0, n_bad = 0; // elements compared, elements outside the tolerance (non-finite ones included)
	size_t n_nonfinite = 0;  // NaN or infinity in x
	size_t worst = 0;        // index of the element furthest outside (or nearest to) its tolerance
	double max_error = 0;    // largest |x - ref|
	double allowed = 0;      // at `worst`
	std::vector<size_t> bad; // the first 5
};
Difference compare(std::span<const float> x, std::span<const float> ref, Tolerance);

// ---- CheckedBackend

// Mirrors every buffer in `reference`, runs each op on both, compares, and carries on with inner's result on both, so
// that the first difference is the op that made it. Without a reference it only checks shapes, scans and dumps.
// KVRUN_DUMP=folder[:op[:layer]] writes the plain inputs and the outputs of each op as
// folder/NUMBER_Llayer_op_name.npy.
class CheckedBackend final : public Backend {
 public:
	CheckedBackend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference);

	const char* name() const override { return inner_->name(); }
	DeviceInfo info() const override { return inner_->info(); }
	Buffer alloc(size_t bytes, Mem mem, const char* label) override;
	void free(uint32_t id) noexcept override;
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType t, uint32_t cols) const override { return inner_->weight_row_bytes(t, cols); }
	void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src) override;

	void embed(View out, View table, View tokens) override;
	void rmsnorm(View out, View x, View w, float eps) override;
	void matmul(std::span<const Proj>, View x, Epilogue, bool decode) override;
	void rope_store(View q, View k, View v, const RopeArgs&, const HeadNorm&, const KvDst& dst) override;
	void kv_store(const PromptKv& src, uint32_t n, const KvDst& dst) override;
	void kv_load(const PromptKv& dst, uint32_t n, const KvDst& src) override;
	void attend(View out, View q, const KvRead&) override;
	void attend_prompt(View out, View q, const PromptKv&, const KvRead* older) override;
	void copy(View dst, View src) override;
	void kv_pack(const PromptKv& src, const PackArgs&) override;
	void kv_block(const PromptKv& src, const BlockArgs&) override;
	void score_prompt(View score, View q, View rows, const PromptKv& kv) override;
	void score_slots(View score, View q, View rows, View lse, const KvRead& f16) override;
	void channel_max(View out, View x) override;
	void kv_balance(View out, View q_max, const PromptKv& k, uint32_t n) override;

	void at_layer(uint32_t layer) override;
	void submit() override { inner_->submit(); }
	void wait() override { inner_->wait(); }
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
		bool cache;        // K or V memory, f16 (or pairs of it): what nobody wrote may hold anything, equal on both
		uint32_t bits = 0; // of packed codes in u32 memory: a code may be one off where a value lies between two
	};
	struct ReadViews; // a KvRead translated to one of the two backends

	View inner(const View& v) const;
	View reference(const View& v) const;
	View reference_weight(const View& w) const;
	Proj translate(const Proj&, bool to_reference) const;
	KvDst translate(const KvDst&, bool to_reference) const;
	template <class F> void run(const char* op, std::string shape, std::vector<Named> in, std::vector<Output> out, F f);
	void compare_output(const char* op, const std::string& shape, const Output&);
	std::vector<uint32_t> fetch_words(const View& v); // of the caller's u32 view
	std::vector<Output> cache_outputs(const KvDst&, uint32_t n_kv_heads, uint32_t head_dim);
	// The words of pool memory from the first to the last that work items write; `field` of each item (`stride` words)
	// says where its `n` words begin, kSkip: nowhere.
	void add_span(std::vector<Output>&, const char* name, const View& pool, std::span<const uint32_t> work,
	              size_t stride, size_t field, uint32_t n, uint32_t bits);
	std::vector<std::byte> fetch(Backend&, const View& v); // submits and waits; v of that backend
	void dump(const char* op, const char* name, const View& v);
	bool dumps(const char* op) const;

	std::unique_ptr<Backend> inner_, reference_; // reference_ may be null
	std::deque<Mirror> mirrors_;                 // by buffer id - 1; addresses stay
	std::vector<uint32_t> free_ids_;
	std::map<std::pair<uint32_t, size_t>, Weight> weights_; // by buffer id, first byte in the inner buffer
	uint32_t layer_ = 0;                                    // of the ops that follow
	bool in_layer_ = false;                                 // at_layer() was called
	uint32_t n_ops_ = 0;                                    // run so far; numbers the dumps
	std::string dump_dir_, dump_op_, dump_layer_;           // KVRUN_DUMP; empty op or layer: all
};

} // namespace kvrun
