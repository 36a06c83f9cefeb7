// Arguments that ops of op_table.h share. T = rows (tokens) in this call. Work items are in shared/work.h.
#pragma once
#include "backends/activation.h"
#include "backends/memory.h"
#include "engine/kv_host/policy.h"
#include "shared/experts.h"
#include "shared/streams.h"
#include "shared/work.h"
#include <span>

namespace kvrun {

// ---- projections

struct Proj { // out (T, d) f32 = x (T, n) . w (d, n)^T + bias (d) f32; bias may be empty
	View out, w, bias;
};
enum class Epilogue : uint8_t {
	None,
	Add,           // out += ...
	SwiGLU,        // two projections g, u of equal shape: out of the first = silu(g) * u; out of the second is unused
	ClampedSwiGLU, // the same with the function of shaders/shared/experts.h; expert_matmul() only
};

struct Elementwise { // arguments of activate()
	Activation function = Activation::None;
	float scale = 1;
	float cap = 0;     // if > 0, v becomes cap * tanh(v / cap)
	bool add = false;  // adds to out
	Xielu xielu = {};  // of Activation::Xielu
	Range range = {};  // of Activation::Clamp
	uint32_t each = 1; // so many consecutive elements of out and y share an element of x
};

// ---- several residual streams

constexpr uint32_t kMostStreams = KV_MOST_STREAMS, kMostAttended = KV_MOST_ATTENDED;
struct StreamRows { // rows of T tokens in each of m streams
	View v;         // (m, capacity, dim) f32
	uint32_t first = 0;
	bool by_row = false; // v is (capacity, m, dim): a row's streams lie side by side
	uint32_t streams() const { return v.shape[by_row ? 1 : 0]; }
	uint32_t capacity() const { return v.shape[by_row ? 0 : 1]; }
	uint32_t dim() const { return v.shape[2]; }
	uint32_t stream_stride() const { return by_row ? 1 : v.shape[1]; } // in rows of dim elements
	uint32_t row_stride() const { return by_row ? v.shape[1] : 1; }
};

// ---- mixtures of experts. Row t chooses `used` of n_experts experts; slot t * used + j is its choice number j.

enum class Gating : uint8_t {
	Softmax, // over all logits; normalised it is the softmax over the chosen ones
	Sigmoid,
	SqrtSoftplus, // root of softplus of the logit
	Near,         // softmax over logits near the expert's own (KV_NEAR), without experts chosen before (sparse mixer)
};
struct RouteArgs {
	Gating gating;
	bool normalise;                         // a row's weights are divided by their sum
	float scale;                            // and multiplied by this
	View bias;                              // (n_experts) f32, added to weights for the choice only; empty for none
	uint32_t n_groups = 1, used_groups = 1; // experts are chosen only in the best groups of neighbours. A group is
	                                        // ranked by its best expert; with a bias, by the sum of its two best
	View expert_scale = {};                 // (n_experts) f32 factors of weights, applied last; empty for none
	// (tokens, used) u32: the experts of each token; `tokens` (T) u32: those of the rows. Logits then only make
	// weights. Empty: rows choose.
	View of_tokens = {}, tokens = {};
};
struct ExpertRows { // which expert multiplies which row
	uint32_t n_experts;
	View ids;        // (T, used) u32, from route()
	View tiles = {}; // (expert_tiles(), KV_TILE_WORDS) u32, from sort_slots(): for rows of a prompt, and only for those
};
// Tiles that hold any choice of experts by n_slots slots.
constexpr uint32_t expert_tiles(uint32_t n_slots, uint32_t n_experts) {
	const uint32_t chosen = n_slots < n_experts ? n_slots : n_experts;
	return chosen + (n_slots - chosen) / KV_EXPERT_TILE;
}

// ---- recurrent layers: a state per sequence in place of keys and values per token

constexpr uint32_t kMostTaps = 16, kMostStateRows = 256; // of a short convolution, of a state of a head
constexpr uint32_t kMostRemovalRows = 128;               // of such a state with DeltaGates::removal
constexpr uint32_t kMostChannelRows = 32;                // of a channel's state, see SelectiveGates

struct StateRows { // which rows belong to which sequence, and where its state is
	View work;     // (n, 4) u32, StateWork; rows of different items are different ones
	View from, to; // f32 words of pool memory; the same where a state is replaced in its place
};
struct ConnectArgs { // of op::StreamCoefs
	float eps, post_scale, post_eps;
	uint32_t rounds;
};
struct ConvArgs {     // what a short convolution does with its sums
	View bias = {};   // (channels) f32, added; empty for none
	bool silu = true; // then silu
	// (T, channels) f32: weights of a channel's rows are a softmax over gates, with neither bias nor silu; empty for
	// none
	View gates = {};
	// Not 0: instead so many mixes of each row with the one before it, see op::ShortConv; none of the above.
	uint32_t mixes = 0;
};
struct DeltaGates {
	View beta, alpha; // (T, n_heads), before the functions below; by_channel: alpha (T, n_heads * k_dim)
	// (n_heads) f32: a row keeps exp(rate * softplus(alpha + shift)) of the state; rate <= 0; by_channel: shift
	// (n_heads * k_dim)
	View rate, shift;
	// (n_heads * k_dim) f32 each; empty unless the state forgets along keys of its own, see op::DeltaRule
	View removal = {}, taken = {}, bonus = {};
};
struct DeltaArgs {
	uint32_t n_key_heads, k_dim; // k_dim: a multiple of 8, at most kMostStateRows
	bool tiled;                  // head h has the key head h % n_key_heads, else h / (n_heads / n_key_heads)
	float eps;                   // added to the squared lengths of queries and keys; DeltaGates::removal: least length
	bool by_channel = false;     // each channel of keys has a decay of its own, else each head
	bool apart = false;          // queries of all rows come first, then keys, then values; else row by row
	// by_channel: < 0: the logarithm of a decay is bound * sigmoid(rate * (alpha + shift)); 0: rate * softplus(alpha +
	// shift)
	float bound = 0;
};
struct ScanGates {
	View step;              // (T, n_heads), before softplus(step + shift)
	View rate, shift, skip; // (n_heads) f32; rate <= 0
};
struct ScanArgs {
	uint32_t n_groups, k_dim; // heads of a group share keys and queries; k_dim: a multiple of 8, at most kMostStateRows
};
struct SelectiveGates {
	View step;        // (T, channels), before softplus(step + shift)
	View b, c;        // (T, k_dim); k_dim: a multiple of 4, at most kMostChannelRows
	View rate;        // (channels, k_dim) f32; <= 0
	View shift, skip; // (channels) f32
};

// ---- keys and values on their way into the cache

struct RopeArgs {
	View table;          // (T, rotary_dim / 2, 2) f32: cos, sin of each row's position, attention scale included
	uint32_t rotary_dim; // channels of a head that are rotated, the leading ones unless `first` says otherwise
	bool neox;           // pairs are (i, i + rotary_dim / 2) [neox], or (2i, 2i + 1)
	// Latent attention: k is a latent, which is stored as it is, and v is rotated as q is. Both have their own width.
	bool of_values = false;
	uint32_t first = 0; // these channels begin with this one
	bool back = false;  // they are turned back
};
struct HeadNorm { // RMS norm of each head before RoPE (qwen3); both empty for none
	View q, k;    // (head_dim) f32
	float eps;
	bool weigh_last = false; // q and k multiply what RoPE gives, which is a norm after it (hunyuan)
};

constexpr uint32_t kSkip = UINT32_MAX; // in place of an offset: nothing is read or written

struct KvDst {              // where rows of K and V lie in pages or in a KvRows, as f16
	View k, v;              // u32 words; word w of kv head h of row t is k[at[t][h][0] + w * k_word_stride]
	                        //            and v[at[t][h][1] + w], w in [0, channels / 2)
	View at;                // (T, n_kv_heads, 2) u32, offsets in words; kSkip: this head of this row is not stored
	uint32_t k_word_stride; // 1: contiguous heads (KvRows); tokens per page: K inside a page is [word][token]
};
// What changes attention's softmax. Scores are q . k / sqrt(head_dim).
struct Softmax {
	float softcap = 0; // if > 0, a score s becomes softcap * tanh(s / softcap)
	View sinks = {};   // (n_heads) f32: one more score of each query head, whose token has no value; empty for none
	// Latent attention, else empty: (T, n_heads, channels of V) f32, rows as q has them. K is what is read as values,
	// and scores are (q . k + q_rope . v) / sqrt(head_dim).
	View q_rope = {};
};
constexpr uint32_t kAllRows = UINT32_MAX;
struct KvRows {         // keys and values of one layer outside of pages: a prompt's own, tokens on their way
	View k, v;          // (n_kv_heads, capacity, channels) f16
	uint32_t first = 0; // row of k and v for row 0 of the op
	// attend_prompt(): with a window there are no older tokens, and token 0 begins a chunk
	Window window = {};
	Softmax softmax = {}; // attend_prompt(), score_prompt()
	// attend_prompt(): so many rows of the op behind its own are also seen by a row; no chunks. kAllRows: each row sees
	// all of them, whatever the window, as well as what it sees before them.
	uint32_t ahead = 0;
	// attend_prompt(), score_prompt(): (T, words) u32; a row only sees tokens of k and v whose bit is set: bit (seen_at
	// + i) % 32 of word (seen_at + i) / 32 for token i. Or (T * kv heads, words): kv head h of row t has row t * kv
	// heads + h of bits. No window. Empty: it sees all of them.
	View seen = {};
	uint32_t seen_at = 0;
	uint32_t seen_sets(uint32_t T) const { return seen && seen.shape[0] > T ? k.shape[0] : 1; } // of a row
	// attend_prompt() without older tokens, sinks and a rotated key: (n_heads) f32; a query head's score loses so much
	// for each token from the row to the token (ALiBi, arXiv 2108.12409; both directions). Empty: nothing.
	View slopes = {};
};

// Channels of heads of consecutive tokens: (T, n_heads, channels) f32, or as KvRows (n_heads, capacity, channels) f16,
// where `first` is the row of token 0.
struct HeadRows {
	View v;
	uint32_t first = 0;
	bool halves() const { return v.type == DType::F16; }
	uint32_t n_heads() const { return v.shape[halves() ? 0 : 1]; }
	uint32_t channels() const { return v ? v.shape[2] : 0; }
	uint32_t head_stride() const { return halves() ? v.shape[1] * v.shape[2] : v.shape[2]; } // elements
	uint32_t token_stride() const { return halves() ? v.shape[2] : v.shape[1] * v.shape[2]; }
	size_t start() const { return halves() ? size_t(first) * v.shape[2] : 0; } // element of token 0 and head 0
};

// ---- attention over pages. All word offsets of a step's sequences are in one table, so that one dispatch serves any
// number of sequences whose pages have the same format.

struct AttendGroup { // work items whose pages share a format and the buffers they lie in: one dispatch
	Format format;
	uint32_t page;                     // tokens per page
	View k_codes = {}, v_codes = {};   // u32 words of pool memory that page entries are relative to
	View k_params = {}, v_params = {}; // the same for (scale, zero) words; empty when bits is 16
	View v_factors = {};               // the same for channel factors; empty unless format.v.norm is SqrtMax
	uint32_t first_work = 0, n_work = 0;
	uint32_t n_pages = 0; // pages its work items read, each counted once; of sparse ones so many as live tokens fill
	// Few of the pages' tokens are live: a device should read only those. Work items have one row.
	bool sparse = false;
};
struct KvRead { // everything attention reads of the cached tokens of one layer
	std::span<const AttendGroup> groups;
	View work;      // (n_work, 8) u32, AttendWork
	View tables;    // u32 words: page entries, live bits, factors
	View balance;   // u32 words; empty unless some group's format.k.norm is Balance
	View row_parts; // (T, 2) u32: first part and number of parts of each row
	View parts;     // (n_parts, n_heads, head_dim + 2) f32 scratch: partial out (unnormalised), max, sum
	uint32_t n_kv_heads;
	// Each work item serves rows row .. row + item_rows - 1 that q has; row + i writes partial state part + i *
	// part_step.
	uint32_t item_rows = 1, part_step = 0;
	// Upper bound of a row's number of parts, if every row has some and each has a work item; 0: unknown. With few
	// parts, a device may merge them without another dispatch.
	uint32_t most_parts = 0;
	Softmax softmax = {};
};

// ---- saliency

struct ScoreGroup { // work items whose pages lie in the same buffer and are scored alike: one dispatch
	uint32_t page;  // tokens per page
	View k_codes;   // u32 words of pool memory that page entries are relative to
	uint32_t first_work, n_work;
	uint32_t n_pages = 0; // as in AttendGroup
	Saliency saliency = {};
	View v_codes = {}; // the same, where ScoreArgs::q_rope is given
	bool apart = true; // it adds to none of the sums of groups before it
};
struct ScoreArgs {
	std::span<const ScoreGroup> groups;
	View work;   // (n_work, 8) u32, ScoreWork
	View rows;   // (n_rows) u32: rows of q
	View tables; // as in KvRead
	View score;  // f32 words, added to
	uint32_t n_kv_heads;
	float softcap = 0; // as in Softmax
	View q_rope = {};  // as in Softmax
};

// ---- fetching

struct WeighGroup { // work items whose pages share a format and lie in the same buffers: one dispatch
	Quant k;
	uint32_t page;               // tokens per page
	View k_codes, k_params = {}; // as in AttendGroup
	uint32_t first_work = 0, n_work = 0;
	uint32_t n_pages = 0; // as in AttendGroup
	// With latent attention the rotated keys, which lie where others have values.
	Quant v = {};
	View v_codes = {}, v_params = {};
};
struct WeighArgs {
	std::span<const WeighGroup> groups;
	View weight;  // f32 words, written
	View work;    // (n_work, 8) u32, WeighWork
	View tables;  // as in KvRead
	View balance; // as in KvRead
	uint32_t n_kv_heads;
	float softcap = 0; // as in Softmax
	View q_rope = {};  // as in Softmax
};
// ---- packing

struct PackArgs {          // one dispatch of kv_pack()
	Format format;         // quantised K or V; 0 bits: K or V is not stored
	uint32_t page;         // tokens per page
	bool k_block;          // K's parameters were written by kv_block(); else this computes and writes them
	View sources;          // (n_sources) u32: rows of the source K and V
	View work;             // (n_work, 10) u32, PackWork
	View k_codes, v_codes; // u32 words of pool memory the offsets are relative to; empty when no work item has any
	View k_params, v_params;
	View v_factors;     // u32 words of pool memory; empty without Prescale::SqrtMax
	View balance;       // u32 words: K is multiplied by the balancer first; empty without Prescale::Balance
	size_t n_heads = 0; // kv heads of tokens in the work items, each counted once; for accounting
};

struct BlockArgs { // one dispatch of kv_block()
	Format format;
	View sources; // (n_sources) u32: rows of the source K and V
	View work;    // (n_work, 6) u32, BlockWork
	View words;   // u32 words of pool memory the offsets are relative to
	View balance; // as in PackArgs
};

} // namespace kvrun
