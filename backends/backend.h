// What a device must do: memory, a small set of ops (op_table.h), submit and wait.
#pragma once
#include "backends/device_tuning.h"
#include "backends/op_table.h"
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace kvrun {

struct DeviceInfo {
	std::string name, driver, type; // type: "discrete", "integrated", "virtual", "cpu"
	bool is_cpu = false;            // runs on the host's processor (software driver or cpu backend)
	size_t memory_bytes = 0;        // size of the heap that kvrun allocates from
	size_t free_bytes = 0;          // bytes of it that kvrun may still take (budget minus reserve)
	size_t max_buffer_bytes = 0;    // largest single Buffer
	size_t max_view_bytes = 0;      // largest View of an op, except weights, which are bound in pieces
	double peak_bytes_per_s = 0;    // 0: unknown
	bool shares_memory = false;     // uses the host's memory
	// Bytes of host memory that kvrun may still take as Mem::Mapped; 0 if ops cannot read it in place, or if memory is
	// shared
	size_t mapped_bytes = 0;
	bool half_matmul = false; // matmul and attention of prompts round their factors to f16; sums are f32
	// attend() and weigh() over tokens of 1 to 4 bits round queries (of 4-bit keys to int16) and weights to int8
	bool int8_attend = false;
	// matmul by weights of 4 to 8 bits rounds x to int8, in blocks of 32: of decode rows, and of prompts unless
	// half_matmul
	bool int8_matmul = false;
	bool lists_candidates = false; // candidates() and reading its lists is faster than reading all logits
	bool merges_few = false;       // attention of decode rows with few partial states is one dispatch per format
	// Attention over many pages is cut into pieces with one partial state each. A piece has at least piece_tokens
	// tokens, a row has about most_pieces pieces at most; prompt_*: for rows of a prompt over older tokens.
	uint32_t piece_tokens = 128, most_pieces = 64;
	// Decode: number of workgroups that keep the device busy, divided among KV heads as pieces; 0: most_pieces.
	uint32_t fill_workgroups = 0;
	uint32_t prompt_piece_tokens = 1024, prompt_most_pieces = 8;
	uint32_t parts = 1; // devices that divide the layers among them (SplitBackend)
};
struct ReadRates {     // at which ops read weights, in bytes per second; 0: unknown. read_rates() measures them
	double device = 0; // in the device's memory
	double bus = 0;    // in host memory that they read in place (Mem::Mapped)
};
struct OpTime { // device time of all dispatches with one label since the last reset
	std::string op;
	uint32_t calls;
	double ms;
	double bytes;                          // least bytes that the op must read and write
	std::vector<std::string> kernels = {}; // kernels that ran, by first use; empty for copies and other backends
};

class Backend : public OpCalls {
 public:
	virtual ~Backend() = default;
	virtual const char* name() const = 0;
	virtual DeviceInfo info() const = 0;

	// ---- memory. New memory is zero (NaN under BackendOptions::poison). Throws Error{OutOfMemory} with need, free and
	// advice.
	virtual Buffer alloc(size_t bytes, Mem mem, const char* label) = 0;
	// Memory that only ops of some layers use: weights and pages. A model may be divided over parts, a device each;
	// part_of(n_layers) is the part of the output.
	virtual uint32_t n_parts() const { return 1; }
	virtual uint32_t part_of(uint32_t /*layer*/) const { return 0; }
	virtual Buffer alloc_part(uint32_t part, size_t bytes, Mem mem, const char* label) {
		KV_ASSERT(part == 0);
		return alloc(bytes, mem, label);
	}
	// Begins to copy bytes that ops have written to another part, whose ops will read them. Ops enqueued later do not
	// wait for it, on either part; the first one that reads the bytes there does.
	virtual void hand_over(const View&, uint32_t /*part*/) {}
	virtual void free(uint32_t id) noexcept = 0;
	// In order with ops: ops enqueued later see the new bytes. src is copied before the call returns; the call waits if
	// the backend has no more staging memory.
	virtual void write(const Buffer& dst, size_t at, std::span<const std::byte> src) = 0;
	// In order with ops; dst is filled by the next wait(), and must live until then.
	virtual void read(const Buffer& src, size_t at, std::span<std::byte> dst) = 0;
	// Whether Mem::Host memory and transfers are there. Without, callers use memory of their own, read() and write().
	virtual bool pins() const { return true; }
	// The host's view of Mem::Host memory. Data that ops copied there is complete after the next wait().
	virtual std::span<std::byte> host_bytes(const Buffer&) = 0;
	// Begins a copy from Mem::Host or Mem::Mapped to Mem::Arrival memory now, concurrent with enqueued ops. The caller
	// must have waited for all reads of dst, and must not change src until ops after arrive() have run. It cannot fail
	// the device: without a second queue the copy is in order with ops; the result is then 0, and nothing need have
	// been waited for.
	virtual uint64_t transfer(View dst, View src) = 0;
	// Ops enqueued from here on run after the transfer. Returns false if it failed; dst is then unchanged.
	virtual bool arrive(uint64_t transfer) = 0;
	// Weights keep their block format; the backend chooses their arrangement inside a row.
	virtual size_t weight_row_bytes(DType, uint32_t cols) const = 0;
	// Converts GGUF rows of `cols` elements to that arrangement; dst has weight_row_bytes() for each. Any thread may
	// call it. Returns false if write_weight() takes rows as they are in the file.
	virtual bool arrange_weight(DType, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const {
		(void)cols, (void)src, (void)dst;
		return false;
	}
	// Writes rows [row, row + n) of weight w (rows, cols) from GGUF bytes. `arranged`: the same rows from
	// arrange_weight() if the caller has them; else empty.
	virtual void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                          std::span<const std::byte> arranged) = 0;

	// ---- ops: run(), and a call for each op in OpCalls. All of them enqueue and return.
	// Whether this backend runs NormMatmul as one op, not as RmsNorm and Matmul.
	virtual bool norms_in_matmul(const op::NormMatmul&) const { return false; }
	// matmul() of rmsnorm(x), as one op or as two.
	void norm_matmul(std::span<const Proj> projs, View h, View x, View w, float eps, Epilogue epilogue, bool decode) {
		const op::NormMatmul both{projs, h, x, w, eps, epilogue, decode};
		if (norms_in_matmul(both)) return run(both);
		run(both.norm());
		run(both.product());
	}

	virtual void at_layer(uint32_t layer) = 0;            // sets the layer of the following ops, for checks and traces
	virtual void submit() = 0;                            // hands recorded work to the device
	virtual void wait() = 0;                              // waits until all submitted work is done; fills pending reads
	virtual uint64_t mark() = 0;                          // submits; returns an id of all work so far
	virtual void wait_for(uint64_t mark) = 0;             // waits for that work; fills its reads
	virtual bool done(uint64_t mark) = 0;                 // whether that work is done; does not wait
	virtual std::vector<OpTime> op_times(bool reset) = 0; // empty unless timing is on
	virtual void time_ops(bool on) = 0;                   // turns timestamps of each dispatch on or off

	// ---- choices between designs, for measurements only: ops enqueued from here on use them, and info() says so
	virtual std::vector<Tunable> tunables() const { return {}; }
	virtual void tune(std::string_view /*name*/, std::string_view /*value*/) {}

	// Bytes of weights in Mem::Mapped memory that ops have read since the backend was opened, as they lie in the file,
	// and that transfers have copied, as they lie in memory.
	uint64_t mapped_bytes_read() const { return mapped_bytes_read_; }

 protected:
	void check_and_count(const Op&);                        // called first by run()
	void check_and_count(const View& dst, const View& src); // called first by transfer()
	// Creates the Buffer that alloc() returns.
	Buffer made(uint32_t id, size_t bytes, Mem mem) {
		has_mapped_ |= mem == Mem::Mapped;
		return {*this, id, bytes, mem};
	}

 private:
	bool has_mapped_ = false; // a buffer of Mem::Mapped was created
	uint64_t mapped_bytes_read_ = 0;
};
inline Buffer::~Buffer() {
	if (backend_) backend_->free(id_);
}

} // namespace kvrun
