// What a device must do: memory, a small set of ops, submit and wait. Backend is the only virtual class of the ops.
// Shapes are (outermost, ..., innermost); T = rows (tokens) in this call.
#pragma once
#include "backends/ops.h"
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace kvrun {

struct DeviceInfo {
	std::string name, driver, type; // type: "discrete", "integrated", "virtual", "cpu"
	bool is_cpu = false;            // runs on the host's processor (software driver or cpu backend)
	size_t memory_bytes = 0;        // of the heap kvrun allocates from
	size_t free_bytes = 0;          // what kvrun may still take of it (budget minus reserve)
	size_t max_buffer_bytes = 0;    // largest single Buffer
	size_t max_view_bytes = 0;      // largest View an op may be given, weights excepted (they are bound in pieces)
	double peak_bytes_per_s = 0;    // 0: unknown
	bool half_matmul = false;       // matmul and attention of prompts round their factors to f16; sums are f32
	// attend() and weigh() over tokens of 1 to 4 bits round queries (of 4-bit keys to int16) and weights to int8
	bool int8_attend = false;
	// matmul by weights of 4 to 8 bits rounds x to int8, in blocks of 32: of decode rows, and of prompts unless
	// half_matmul
	bool int8_matmul = false;
	bool lists_candidates = false; // candidates() and reading its lists is faster than reading all logits
	bool merges_few = false;       // attention of decode rows with few partial states is one dispatch per format
	// Attention over many pages is cut into pieces, one partial state each. A piece has at least this many tokens, and
	// a row has about this many pieces at most; prompt: of rows of a prompt over older tokens.
	uint32_t piece_tokens = 128, most_pieces = 64;
	// Decode: how many workgroups keep the device busy. Pieces are then as many for each KV head; 0: most_pieces.
	uint32_t fill_workgroups = 0;
	uint32_t prompt_piece_tokens = 1024, prompt_most_pieces = 8;
};
struct OpTime { // device time of all dispatches with one label since the last reset
	std::string op;
	uint32_t calls;
	double ms;
	double bytes;                          // read + written, as the op must at least
	std::vector<std::string> kernels = {}; // that ran, by first use; empty: copies, other backends
};

class Backend {
 public:
	virtual ~Backend() = default;
	virtual const char* name() const = 0;
	virtual DeviceInfo info() const = 0;

	// ---- memory. New memory is zero (NaN under BackendOptions::poison). Throws Error{OutOfMemory} with need, free and
	// advice.
	virtual Buffer alloc(size_t bytes, Mem mem, const char* label) = 0;
	virtual void free(uint32_t id) noexcept = 0;
	// In order with ops: ops enqueued later see the new bytes. src is copied before the call returns, which waits where
	// the backend has no more staging memory.
	virtual void write(const Buffer& dst, size_t at, std::span<const std::byte> src) = 0;
	// In order with ops; dst is filled by the next wait(), and must live until then.
	virtual void read(const Buffer& src, size_t at, std::span<std::byte> dst) = 0;
	// Mem::Host memory as the host sees it. What ops copied there is complete after the wait() for them.
	virtual std::span<std::byte> host_bytes(const Buffer&) = 0;
	// A copy from Mem::Host to Mem::Arrival memory that begins now, beside what is enqueued: the caller has waited for
	// what reads dst, and leaves src alone until ops that come after arrive() have run. Never a failure of the device:
	// where there is no second queue the copy is in order with ops.
	virtual uint64_t transfer(View dst, View src) = 0;
	// Ops enqueued from here on come after the transfer. False: it failed, dst holds what it held.
	virtual bool arrive(uint64_t transfer) = 0;
	// Weights keep their block format; their arrangement inside a row is the backend's business.
	virtual size_t weight_row_bytes(DType, uint32_t cols) const = 0;
	// GGUF rows of `cols` elements in that arrangement; dst has weight_row_bytes() for each. Any thread may call it.
	// False: write_weight() takes rows as they are in the file.
	virtual bool arrange_weight(DType, uint32_t cols, std::span<const std::byte> src, std::span<std::byte> dst) const {
		(void)cols, (void)src, (void)dst;
		return false;
	}
	// Rows [row, row + n) of weight w (rows, cols) from GGUF bytes. `arranged`: the same rows from arrange_weight(),
	// for a caller that has them; else empty.
	virtual void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src,
	                          std::span<const std::byte> arranged) = 0;

	// ---- ops: enqueue and return
	virtual void embed(View out, View table, View tokens) = 0;     // out (T, dim) f32 = table[tokens (T) u32]
	virtual void rmsnorm(View out, View x, View w, float eps) = 0; // out (T, dim) = x / rms(x) * w (dim)
	// out (T, dim) = (x - mean) / sqrt(variance + eps) * w (dim) + b (dim), of each row; b may be empty
	virtual void layer_norm(View out, View x, View w, View b, float eps) = 0;
	// v = scale * function(x) * y, then the cap; out = v or out + v. All of one shape, y may be empty; out may be x, y.
	virtual void activate(View out, View x, View y, const Elementwise&) = 0;
	// All projections read the same x (T, n) f32. `decode`: rows of decode steps, else rows of a prompt. A row's result
	// depends on which of the two it is and on nothing else: neither on T nor on the other rows.
	virtual void matmul(std::span<const Proj>, View x, Epilogue, bool decode) = 0;
	// Whether norm_matmul() is one op of its own here, not rmsnorm() and matmul().
	virtual bool norms_in_matmul(std::span<const Proj>, const View& x, const View& w, bool decode) const {
		(void)x, (void)w, (void)decode;
		return false;
	}
	// matmul() of rmsnorm(x), for which `h` (T, n) f32 is room: what it holds afterwards is not defined.
	virtual void norm_matmul(std::span<const Proj> projs, View h, View x, View w, float eps, Epilogue epilogue,
	                         bool decode) {
		rmsnorm(h, x, w, eps);
		matmul(projs, h, epilogue, decode);
	}
	// ---- mixtures of experts: see RouteArgs for slots. At most KV_MOST_EXPERTS experts, KV_MOST_USED of them for a
	// row. ids, weights (T, used) of logits (T, n_experts) f32: the largest, of equal ones the first, in that order.
	// Weights that are not finite come of logits that are not; ids are valid and different nevertheless.
	virtual void route(View ids, View weights, View logits, const RouteArgs&) = 0;
	// tiles (expert_tiles(), KV_TILE_WORDS) u32: the slots of ids (T, used) by expert, see shaders/shared/experts.h.
	virtual void sort_slots(View tiles, View ids, uint32_t n_experts) = 0;
	// For each slot: out (T, used, d) = x . w^T + bias with w (n_experts * d, n) and bias (n_experts * d) f32, rows
	// e * d .. e * d + d - 1 of expert e = ids[slot]. x (T, n) f32, or (T * used, n): a row for each slot. Epilogues:
	// None and the two of gates. decode: as matmul() has it; a slot's result depends on nothing else either.
	virtual void expert_matmul(std::span<const Proj>, View x, const ExpertRows&, Epilogue, bool decode) = 0;
	// x (T, dim) f32 += sum over j of weights[t][j] * y[t][j]; y (T, used, dim) f32, weights (T, used) f32.
	virtual void expert_sum(View x, View y, View weights) = 0;
	// Head norm (optional), rotation of q in place (T, n_heads, head_dim), of k (T, n_kv_heads, head_dim), then
	// k and v to f16 at `dst`; k and v themselves are left as they are.
	virtual void rope_store(View q, View k, View v, const RopeArgs&, const HeadNorm&, const KvDst& dst) = 0;
	// Rows [src.first, src.first + n) of src (as f16, unchanged) to `dst`, whose `at` has n rows.
	virtual void kv_store(const KvRows& src, uint32_t n, const KvDst& dst) = 0;
	// Rows [dst.first, dst.first + n) of dst = the f16 keys and values at `src`: the inverse of kv_store().
	virtual void kv_load(const KvRows& dst, uint32_t n, const KvDst& src) = 0;
	// out (T, n_heads, head_dim) = softmax(q . K^T / sqrt(head_dim)) . V over all live tokens of every tier.
	// lse (T, n_heads) f32 = log of the sum of exp(score) over the tokens a row sees, and the sink; empty if not
	// wanted.
	virtual void attend(View out, View lse, View q, const KvRead&) = 0;
	// The same for prompt rows over their own K and V, causal: row i sees tokens 0 .. own.first + i; and over older
	// tokens if `older` is not null: then the last part of each row in older->row_parts has no work item and takes the
	// state over the prompt's own tokens. Both have the same Softmax.
	virtual void attend_prompt(View out, View lse, View q, const KvRows& own, const KvRead* older) = 0;
	// Quantises tokens of `src` (src.first is not used) and packs them into pages, by the rules of
	// engine/kv_host/quant.h. Parameters per channel: a work item is one whole page (slot 0, n = page) unless k_block.
	virtual void kv_pack(const KvRows& src, const PackArgs&) = 0;
	// Parameters over all tokens of a work item: K's (scale, zero) per channel, V's channel factors sqrt(max|x|).
	virtual void kv_block(const KvRows& src, const BlockArgs&) = 0;
	// Saliency: attention received, summed over the rows of q that `rows` (n) u32 lists in ascending order, averaged
	// over the query heads of a kv head: score[h][t] += sum_r mean_heads exp(q . k_t / sqrt(head_dim) - lse[r][head]);
	// without attention each row counts 1; times |k_t|, or over it and at least 1e-6, where the key's length counts.
	// Scores have kv's softcap. Prompt tokens, causal: row r sees tokens 0 .. kv.first + r. score (n_kv_heads, >=
	// kv.first + T) f32.
	virtual void score_prompt(View score, View q, View lse, View rows, const KvRows& kv, Saliency) = 0;
	// Live tokens in f16 pages: every work item's pages against the rows it lists.
	virtual void score_slots(View q, View lse, const ScoreArgs&) = 0;
	// out (n_kv_heads, head_dim) f32 = max(out, |x|) over x (T, n_heads, head_dim) f32 and the heads of a kv head.
	virtual void channel_max(View out, View x) = 0;
	// MiKV eq. (2): out (n_kv_heads, head_dim) f16 = sqrt(q_max / max |k|), k over rows [0, n) of the prompt's keys;
	// 1 where that is 0.  max |k| is taken as at least 1e-12.
	virtual void kv_balance(View out, View q_max, const KvRows& k, uint32_t n) = 0;
	virtual void copy(View dst, View src) = 0; // same bytes, same type

	// ---- fetching: what a row attends to, and masking
	// Attention that live tokens of pages receive from one row per work item: weight[..] = mean over the query heads of
	// a kv head of exp(q . k / sqrt(head_dim) - lse); -1 for slots without a live token.
	virtual void weigh(View q, View lse, const WeighArgs&) = 0;
	// For each work item the indices of its k largest weights that are not negative, ascending; ~0 behind them where
	// there are fewer. Of equal ones the first.
	virtual void top_k(View picks, View weight, View work) = 0;
	// The largest elements of each row of x (T, n) f32: those not below the k-th largest of the maxima of blocks of
	// KV_LOGIT_BLOCK elements. list (T, KV_CANDIDATE_WORDS) u32: how many, then (index, bits) of each by index; or
	// KV_CANDIDATES + 1, the rest undefined, if there are more than KV_CANDIDATES, fewer blocks than k, a NaN or +inf
	// in the row, or if the k-th largest maximum is -inf. block_max (T, blocks) u32: room for the maxima. k >= 1.
	virtual void candidates(View list, View block_max, View x, uint32_t k) = 0;
	// words[list[i][0]] = list[i][1]; list (n, 2) u32, every word at most once.
	virtual void scatter(View words, View list) = 0;
	// out (n, n_heads) f32: the share of a row's softmax weights that its first parts hold. work (n, 4) u32, ShareWork.
	virtual void part_share(View out, View parts, View work) = 0;

	virtual void at_layer(uint32_t layer) = 0; // names the layer of the ops that follow, for checks and traces
	virtual void submit() = 0;                 // hands recorded work to the device
	virtual void wait() = 0;                   // until everything submitted is done; fills pending reads
	virtual uint64_t mark() = 0;               // submits; a name for everything so far
	virtual void wait_for(uint64_t mark) = 0;  // until that is done; fills its reads
	virtual bool done(uint64_t mark) = 0;      // whether it is; does not wait
	virtual std::vector<OpTime> op_times(bool reset) = 0; // empty unless timing is on
	virtual void time_ops(bool on) = 0;                   // per-dispatch device timestamps
};
inline Buffer::~Buffer() {
	if (backend_) backend_->free(id_);
}

} // namespace kvrun
