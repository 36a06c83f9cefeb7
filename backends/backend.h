// What a device must do: memory, a small set of ops, submit and wait. Buffer owns, View looks, Backend is the only
// virtual class. Shapes are (outermost, ..., innermost); T = rows (tokens) in this call.
#pragma once
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/kv/policy.h"
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

class Backend;

enum class Mem : uint8_t {
	Device,   // fastest for the device; the host writes and reads it by copies
	Upload,   // small, written by the host every step, read by the device
	Readback, // written by the device, read by the host
};

class Buffer { // the only owner of device memory; move-only
 public:
	Buffer() = default;
	Buffer(Backend& b, uint32_t id, size_t bytes) : backend_(&b), id_(id), bytes_(bytes) {}
	Buffer(Buffer&& o) noexcept { swap(o); }
	Buffer& operator=(Buffer&& o) noexcept {
		Buffer gone(std::move(*this));
		swap(o);
		return *this;
	}
	~Buffer();
	uint32_t id() const { return id_; }
	size_t bytes() const { return bytes_; }
	explicit operator bool() const { return backend_ != nullptr; }

 private:
	void swap(Buffer& o) noexcept {
		std::swap(backend_, o.backend_);
		std::swap(id_, o.id_);
		std::swap(bytes_, o.bytes_);
	}
	Backend* backend_ = nullptr;
	uint32_t id_ = 0;
	size_t bytes_ = 0;
};

struct View { // a typed, row-major window into a Buffer; never owns
	const Buffer* buf = nullptr;
	size_t at = 0; // bytes from the start of the buffer: a multiple of 4, of 16 for activations and for K and V
	DType type = DType::F32;
	uint32_t shape[4] = {1, 1, 1, 1}; // outermost first, trailing ones
	explicit operator bool() const { return buf != nullptr; }
	size_t elements() const { return size_t(shape[0]) * shape[1] * shape[2] * shape[3]; }
	size_t row_elements() const { return size_t(shape[1]) * shape[2] * shape[3]; }
};

inline View view(const Buffer& b, size_t at, DType t, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
	return View{&b, at, t, {d0, d1, d2, d3}};
}
// Rows [first, first + n) of a plain (not quantised) view.
inline View rows(const View& v, uint32_t first, uint32_t n) {
	KV_ASSERT(!is_quantised(v.type) && uint64_t(first) + n <= v.shape[0]);
	View r = v;
	r.at += first * v.row_elements() * dtype_info(v.type).bytes;
	r.shape[0] = n;
	return r;
}

// The 32-bit words of an f16 view.
inline View as_words(const View& v) {
	KV_ASSERT(v.type == DType::F16);
	return view(*v.buf, v.at, DType::U32, uint32_t(v.elements() / 2));
}

// ---- arguments of the ops

struct Proj { // one projection: out (T, d) f32 = x (T, n) . w (d, n)^T + bias (d) f32; bias may be empty
	View out, w, bias;
};
enum class Epilogue : uint8_t {
	None,
	Add,    // out += ...
	SwiGLU, // two projections g, u of equal shape: out of the first = silu(g) * u; out of the second is unused
};

struct RopeArgs {
	View table;          // (T, rotary_dim / 2, 2) f32: cos, sin of each row's position, attention scale included
	uint32_t rotary_dim; // leading channels of a head that are rotated
	bool neox;           // pairs are (i, i + rotary_dim / 2) [neox], or (2i, 2i + 1)
};
struct HeadNorm { // RMS norm of each head before RoPE (qwen3); both empty for none
	View q, k;    // (head_dim) f32
	float eps;
};
constexpr uint32_t kSkip = UINT32_MAX;
struct KvDst {              // where rope_store() and kv_store() write rows of K and V, as f16
	View k, v;              // u32 words; word w of kv head h of row t goes to k[at[t][h][0] + w * k_word_stride]
	                        //            and v[at[t][h][1] + w], w in [0, head_dim / 2)
	View at;                // (T, n_kv_heads, 2) u32, offsets in words; kSkip: this head of this row is not stored
	uint32_t k_word_stride; // 1: contiguous head (prompt scratch); page: K inside a page is [word][token]
};

struct AttendWork {      // what one workgroup (times kv heads) attends to: u32 x 4 in device memory
	uint32_t row;        // first row of q
	uint32_t first_page; // index into KvRead::pages and ::live
	uint32_t n_pages;
	uint32_t part; // index of the partial state that row writes
};
struct AttendGroup { // work items whose pages share a format and the buffers they live in: one dispatch
	Format format;
	uint32_t page;           // tokens per page
	View k_codes, v_codes;   // u32 words of pool memory that page offsets are relative to
	View k_params, v_params; // the same for (scale, zero) words; empty when bits is 16
	uint32_t first_work, n_work;
	View v_factors = {};  // the same for channel factors; empty unless format.v.norm is SqrtMax
	uint32_t n_pages = 0; // pages its work items read, each counted once; for accounting, 0: unknown
};
struct KvRead { // everything attention reads of one layer's cache
	std::span<const AttendGroup> groups;
	View work;      // (n_work, 4) u32, AttendWork
	View pages;     // (n_pages, 4) u32: word offset of a page's K codes, V codes, K params, V params
	View live;      // (1 or n_kv_heads, n_pages, 4) u32: one bit per token of a page (page / 32 words used)
	View row_parts; // (T, 2) u32: first part and number of parts of each row
	View parts;     // (n_parts, n_heads, head_dim + 2) f32 scratch: partial out (unnormalised), max, sum
	uint32_t n_kv_heads;
	View factors = {}; // (n_pages) u32: word offset of V's channel factors; empty if no group has v_factors
	View balance = {}; // (n_kv_heads, head_dim) f16: q is divided by it for groups whose format.k.norm is
	                   // Balance; empty if there is none
	View lse = {};     // (T, n_heads) f32, written: log of the sum of exp(score) over all tokens a row sees, its
	                   // own prompt's included; empty if not wanted
	// Each work item serves rows row .. row + item_rows - 1 that q has; row + i writes partial state part + i *
	// part_step.
	uint32_t item_rows = 1, part_step = 0;
};
struct PromptKv {   // the prompt's own keys and values of this layer
	View k, v;      // (n_kv_heads, T_cap, head_dim) f16
	uint32_t first; // token index in k, v of query row 0; row i sees tokens 0 .. first + i
	View lse = {};  // (T, n_heads) f32, as KvRead::lse; attend_prompt() writes this one
};

struct PackWork {                // tokens that become consecutive slots of one page: u32 x 8 in device memory
	uint32_t src, n;             // PackArgs::sources[src .. src + n)
	uint32_t head;               // kv head, or UINT32_MAX: all of them
	uint32_t slot;               // of the first token in the page
	uint32_t k_codes, v_codes;   // word offset of the page's codes; kSkip: another layer stores them
	uint32_t k_params, v_params; // word offset of the page's parameters; of the block's where K's are in a block
};
struct PackArgs {          // one dispatch of kv_pack()
	Format format;         // quantised K or V; 0 bits: nothing is stored of it
	uint32_t page;         // tokens per page
	bool k_block;          // K's parameters were written by kv_block(); else this computes and writes them
	View sources;          // (n_sources) u32: rows of the source K and V
	View work;             // (n_work, 8) u32, PackWork
	View k_codes, v_codes; // u32 words of pool memory the offsets are relative to; empty when no work item has any
	View k_params, v_params;
	View factors;   // (n_work) u32: word offset of V's channel factors in v_factors; empty without SqrtMax
	View v_factors; // u32 words of pool memory
	View balance;   // (n_kv_heads, head_dim) f16: K is multiplied by it first; empty without Norm::Balance
};
struct BlockWork {      // tokens that are compressed together: u32 x 4 in device memory
	uint32_t src, n;    // BlockArgs::sources[src .. src + n)
	uint32_t k_params;  // word offset of K's (scale, zero) per channel; kSkip: K's parameters are in the pages
	uint32_t v_factors; // word offset of V's channel factors; kSkip: V has none
};
struct BlockArgs { // one dispatch of kv_block()
	Format format;
	uint32_t head; // kv head whose part of the blocks is computed, or UINT32_MAX: all
	View sources;  // (n_sources) u32: rows of the source K and V
	View work;     // (n_work, 4) u32, BlockWork
	View words;    // u32 words of pool memory the offsets are relative to
	View balance;  // as in PackArgs
};

struct DeviceInfo {
	std::string name, driver, type; // type: "discrete", "integrated", "virtual", "cpu"
	bool is_cpu = false;            // runs on the host's processor (software driver or cpu backend)
	size_t memory_bytes = 0;        // of the heap kvrun allocates from
	size_t free_bytes = 0;          // what kvrun may still take of it (budget minus reserve)
	size_t max_buffer_bytes = 0;    // largest single Buffer
	size_t max_view_bytes = 0;      // largest View an op may be given, weights excepted (they are bound in pieces)
	double peak_bytes_per_s = 0;    // 0: unknown
};
struct OpTime { // device time of all dispatches with one label since the last reset
	std::string op;
	uint32_t calls;
	double ms;
	double bytes; // read + written, as the op must at least
};

class Backend {
 public:
	virtual ~Backend() = default;
	virtual const char* name() const = 0;
	virtual DeviceInfo info() const = 0;

	// ---- memory. New memory is zero (NaN under KVRUN_POISON). Throws Error{OutOfMemory} with need, free and advice.
	virtual Buffer alloc(size_t bytes, Mem mem, const char* label) = 0;
	virtual void free(uint32_t id) noexcept = 0;
	// In order with ops: ops enqueued later see the new bytes. src is copied before the call returns.
	virtual void write(const Buffer& dst, size_t at, std::span<const std::byte> src) = 0;
	// In order with ops; dst is filled by the next wait(), and must live until then.
	virtual void read(const Buffer& src, size_t at, std::span<std::byte> dst) = 0;
	// Weights keep their block format; their arrangement inside a row is the backend's business.
	virtual size_t weight_row_bytes(DType, uint32_t cols) const = 0;
	// Rows [row, row + n) of weight w (rows, cols) from GGUF bytes.
	virtual void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src) = 0;

	// ---- ops: enqueue and return
	virtual void embed(View out, View table, View tokens) = 0;     // out (T, dim) f32 = table[tokens (T) u32]
	virtual void rmsnorm(View out, View x, View w, float eps) = 0; // out (T, dim) = x / rms(x) * w (dim)
	// All projections read the same x (T, n) f32. T = 1..8 is the decode path when `decode`, else the prompt path:
	// a row's result depends on the path and on nothing else, so that any chunking of a prompt gives the same bits.
	virtual void matmul(std::span<const Proj>, View x, Epilogue, bool decode) = 0;
	// Head norm (optional), rotation of q in place (T, n_heads, head_dim), of k (T, n_kv_heads, head_dim), then
	// k and v to f16 at `dst`; k and v themselves are left as they are.
	virtual void rope_store(View q, View k, View v, const RopeArgs&, const HeadNorm&, const KvDst& dst) = 0;
	// Prompt tokens [first, first + n) of `src` (as f16, unchanged) to `dst`, whose `at` has n rows.
	virtual void kv_store(const PromptKv& src, uint32_t n, const KvDst& dst) = 0;
	// out (T, n_heads, head_dim) = softmax(q . K^T / sqrt(head_dim)) . V over all live tokens of every tier.
	virtual void attend(View out, View q, const KvRead&) = 0;
	// The same for prompt rows over their own K and V, causal, and over older tokens if `older` is not null: then the
	// last part of each row in older->row_parts has no work item and takes the state over the prompt's own tokens.
	virtual void attend_prompt(View out, View q, const PromptKv&, const KvRead* older) = 0;
	// Rows [dst.first, dst.first + n) of dst = the f16 keys and values at `src`: the inverse of kv_store().
	virtual void kv_load(const PromptKv& dst, uint32_t n, const KvDst& src);
	// Quantises tokens of `src` (rows of its k and v; src.first is not used) and packs them into pages, by the rules of
	// engine/kv/quant.h. Parameters per channel: a work item is one whole page (slot 0, n = page) unless k_block.
	virtual void kv_pack(const PromptKv& src, const PackArgs&);
	// Parameters over all tokens of a work item: K's (scale, zero) per channel, V's channel factors sqrt(max|x|).
	virtual void kv_block(const PromptKv& src, const BlockArgs&);
	// ---- saliency: attention received, summed over the rows of q that `rows` (n) u32 lists, averaged over the query
	// heads of a kv head: score[h][t] += sum_r mean_heads exp(q . k_t / sqrt(head_dim) - lse[r][head]).
	// Prompt tokens, causal: row r sees tokens 0 .. kv.first + r. score (n_kv_heads, >= kv.first + T) f32; kv.lse is
	// read.
	virtual void score_prompt(View score, View q, View rows, const PromptKv& kv);
	// Live tokens in f16 pages: every work item of `f16` (all groups are 16 bit) against all listed rows; the work
	// item's own row and part do not count. score (n_kv_heads, n_slots) f32 by slot = page * tokens per page + index.
	virtual void score_slots(View score, View q, View rows, View lse, const KvRead& f16);
	// out (n_kv_heads, head_dim) f32 = max(out, |x|) over x (T, n_heads, head_dim) f32 and the heads of a kv head.
	virtual void channel_max(View out, View x);
	// MiKV eq. (2): out (n_kv_heads, head_dim) f16 = sqrt(q_max / max |k|), k over rows [0, n) of the prompt's keys;
	// 1 where that is 0.  max |k| is taken as at least 1e-12.
	virtual void kv_balance(View out, View q_max, const PromptKv& k, uint32_t n);
	virtual void copy(View dst, View src) = 0; // same bytes, same type

	virtual void at_layer(uint32_t) {} // names the layer of the ops that follow, for checks and traces
	virtual void submit() = 0;         // hands recorded work to the device
	virtual void wait() = 0;           // until everything submitted is done; fills pending reads
	virtual std::vector<OpTime> op_times(bool reset) = 0; // empty unless timing is on
	virtual void time_ops(bool on) = 0;                   // per-dispatch device timestamps
};
inline void Backend::kv_load(const PromptKv&, uint32_t, const KvDst&) {
	fail(Code::Unsupported, "kv_load on {}", name());
}
inline void Backend::kv_pack(const PromptKv&, const PackArgs&) { fail(Code::Unsupported, "kv_pack on {}", name()); }
inline void Backend::kv_block(const PromptKv&, const BlockArgs&) { fail(Code::Unsupported, "kv_block on {}", name()); }
inline void Backend::score_prompt(View, View, View, const PromptKv&) {
	fail(Code::Unsupported, "score_prompt on {}", name());
}
inline void Backend::score_slots(View, View, View, View, const KvRead&) {
	fail(Code::Unsupported, "score_slots on {}", name());
}
inline void Backend::channel_max(View, View) { fail(Code::Unsupported, "channel_max on {}", name()); }
inline void Backend::kv_balance(View, View, const PromptKv&, uint32_t) {
	fail(Code::Unsupported, "kv_balance on {}", name());
}
inline Buffer::~Buffer() {
	if (backend_) backend_->free(id_);
}

struct DeviceReport {    // one candidate, usable or not
	std::string backend; // "vulkan", "cpu"
	DeviceInfo info;
	std::string refused;                                     // why it cannot be used; empty if it can
	std::vector<std::pair<std::string, std::string>> limits; // name, value: what matters here
};

std::unique_ptr<Backend> make_cpu_backend();
// All devices of all backends, best first. Never throws for a missing loader: that is a report too.
std::vector<DeviceReport> list_devices();
// `which`: empty (best: discrete, integrated, virtual; a CPU device only if there is nothing else), an index into
// list_devices(), part of a device name, or "cpu" for the cpu backend. Throws Error{Device} with every refusal.
// With KVRUN_CHECK=1 or KVRUN_DUMP the result is wrapped in a CheckedBackend.
std::unique_ptr<Backend> open_backend(const std::string& which);
std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference);

} // namespace kvrun
