// CheckedBackend: runs every op on two backends in lock-step, compares, scans for NaN, dumps.
#pragma once
#include "backends/backend.h"
#include "backends/id_table.h"
#include "backends/op_walk.h"
#include "backends/tolerance.h"
#include <map>

namespace kvrun {

// Mirrors every buffer in `reference`, runs each op on both, compares, and continues with inner's result on both, so
// that the first difference shows the op that caused it. Without a reference it only checks shapes, scans and dumps.
// With an observer a difference is reported and does not stop the run: both continue with the reference's result, so
// that later ops are compared independently.
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
	bool arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override {
		return inner_->arrange_weight(t, cols, src, dst);
	}
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override;

	void run(const Op&) override;
	bool pins() const override { return inner_->pins(); }
	bool norms_in_matmul(const op::NormMatmul& o) const override;
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
		std::shared_ptr<Buffer> reference; // all rows, from byte 0; copies of a weight share it
		uint32_t first;                    // row of it that lies at the first byte
	};
	struct Output {
		const char* name;
		View view; // the caller's; elements compared
		Tolerance tolerance;
		bool cache = false; // K or V memory, f16 or pairs: unwritten elements may hold anything equal on both
		uint32_t bits = 0;  // of packed codes in u32 memory: a code may differ by one where a value lies between two;
		                    // 32: whole words, which must be equal
	};

	View inner(const View& v) const;
	View reference(const View& v) const;
	View reference_weight(const View& w) const;
	void erase_weights(uint32_t id, size_t begin, size_t end); // that overlap these bytes
	void copy_weights(const View& dst, const View& src);
	MappedOp for_inner(const Op&) const;
	MappedOp for_reference(const Op&) const;
	std::vector<Output> compared(const Op&);
	void compare_output(const char* op, const std::string& shape, const Output&);
	std::vector<uint32_t> fetch_words(const View& v);      // view of the caller
	std::vector<std::byte> fetch(Backend&, const View& v); // submits and waits; v of that backend
	void carry_on(const Output&, std::span<const std::byte> bytes, bool wrong);
	void dump(const char* op, const std::string& name, const View& v);
	bool dumps(const char* op) const;

	std::unique_ptr<Backend> inner_, reference_; // reference_ may be null
	const DeviceInfo info_;                      // of inner_; kept because some backends take time to compute it
	IdTable<Mirror> mirrors_;                    // by buffer id
	std::map<std::pair<uint32_t, size_t>, Weight> weights_; // by buffer id, first byte in the inner buffer
	uint32_t layer_ = 0;                                    // layer of the following ops
	bool in_layer_ = false;                                 // at_layer() was called
	uint32_t n_ops_ = 0;                                    // run so far; numbers the dumps
	std::string dump_dir_, dump_op_, dump_layer_;           // empty op or layer: all
	OpObserver observer_;
};

std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference,
                                              const std::string& dump = "", OpObserver observer = {});

} // namespace kvrun
