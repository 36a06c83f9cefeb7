// Arguments of every CUDA kernel, and the table of kernels that the host launches. Read by nvcc and by C++.
// Pointers are device memory; "words" are 32 bits. Work items are in shared/work.h.
#pragma once
#include "backends/activation.h"
#include "shared/streams.h"
#include "shared/weight_row.h"
#include "shared/work.h"
#include <stdint.h>

namespace kvrun::cuda {

constexpr uint32_t kMaxHeadDim = 512;       // channels of a head
constexpr uint32_t kMaxRuns = 512;          // (scale, zero) pairs of one token over all kv heads
constexpr uint32_t kNoOffset = 0xffffffffu; // kSkip of backends/ops.h; as a head: all heads
constexpr uint32_t kWarp = 32;              // threads
constexpr uint32_t kVecWarps = 4;           // warps of a block of matvec
constexpr uint32_t kVecRows = 4;            // weight rows of a block of matvec_row: of one weight or of two together
constexpr uint32_t kVecTokens = 8;          // rows of x of a block of matvec
constexpr uint32_t kTileRows = 128;         // weight rows of a block of matmul
constexpr uint32_t kTile = 64;              // rows of x of a block of matmul and expert_matmul
constexpr uint32_t kWideTile = 128;         // the same of matmul_wide
constexpr uint32_t kMatmulThreads = 256;    // threads of a block; each has 4 x 8 or 8 x 8 sums
constexpr uint32_t kThreads = 128;          // threads of a block of any other kernel; the most tokens of a page
constexpr uint32_t kMaxGroups = 2048;       // (scale, zero) pairs of one kv head of a page: 128 tokens, runs of 32
constexpr uint32_t kPackRows = 8;           // tokens that pack_pages rotates at a time
constexpr uint32_t kMostTaps = 16;          // taps of a short convolution
constexpr uint32_t kMostStateRows = 256;    // rows of a head's state
constexpr uint32_t kMostRemovalRows = 128;  // the same of delta_removal
constexpr uint32_t kMostChannelRows = 32;   // rows of a channel's state
constexpr uint32_t kStateRows = 16;         // rows of a column that a thread holds
constexpr uint32_t kLaneColumns = 2;        // columns of a thread
constexpr uint32_t kStateColumns = 32;      // columns of a block
constexpr uint32_t kStateTile = 8;          // tokens that pass through shared memory together
constexpr uint32_t kSelectiveChannels = 64; // channels of a block of selective_scan
constexpr uint32_t kConvTile = 16;          // rows of a block of short_conv
constexpr uint32_t kIndexRows = 32;         // rows of a block of index_score
constexpr uint32_t kNarrowKey = 128;        // most channels of a key of index_score
constexpr uint32_t kPickThreads = 256;      // threads of a block of index_pick
constexpr uint32_t kLiveBlocks = 8;         // blocks of a work item of index_live
constexpr uint32_t kQueries = 8;            // pairs of row and query head a block of attention serves
constexpr uint32_t kAttendBlocks = 4;       // blocks of attention with fewer queries at once on a multiprocessor

struct Weight { // rows in the layout of shaders/shared/weight_row.h
	const void* rows;
	uint32_t cols; // elements of a row
	uint32_t type; // the value of DType
	WeightTraits traits;
	const uint32_t* grids; // the table, for types with grids
};

// Types with kernels of their own for one row of x, where decode steps spend their time: F16, Q8_0, Q4_0, Q4_K, Q5_K,
// Q6_K.
#define KV_KNOWN_TYPES(X) X(1u) X(8u) X(2u) X(12u) X(13u) X(14u)
constexpr bool is_known_type(uint32_t type) {
#define KV_IS_KNOWN(id) || type == id
	return false KV_KNOWN_TYPES(KV_IS_KNOWN);
#undef KV_IS_KNOWN
}

struct EmbedArgs {
	float* out;             // (n_tokens, table.cols)
	Weight table;           // (n_rows, cols)
	const uint32_t* tokens; // (n_tokens)
	uint32_t n_tokens, n_rows;
};
struct RmsNormArgs {
	float* out;     // (rows, dim)
	const float* x; // (rows, dim)
	const float* w; // (groups, dim)
	uint32_t dim, groups;
	float eps;
};
struct LayerNormArgs {
	float* out;            // (rows, dim)
	const float* x;        // (rows, dim)
	const float *w, *bias; // (groups, dim); bias may be null
	uint32_t dim, groups;
	float eps;
};
struct ActivateArgs {
	float* out;         // (n)
	const float *x, *y; // (n / each), (n); y may be null
	uint64_t n;
	uint32_t function; // the value of Activation
	float scale, cap;  // cap 0: no cap
	bool add;
	Xielu xielu;
	Range range;
	uint32_t each;
};
enum MatmulMode : uint32_t { // what happens to a sum
	kStore,
	kAdd,           // out += sum
	kSwiGlu,        // out = silu(sum of w[0]) * sum of w[1]
	kClampedSwiGlu, // the same with the function of shaders/shared/experts.h
};
struct MatmulArgs {
	float* out;           // (tokens, rows)
	const float* x;       // (tokens, cols)
	Weight w[2];          // (rows, cols); the second for kSwiGlu only
	const float* bias[2]; // (rows), or null
	uint32_t rows, tokens;
	MatmulMode mode;
};
struct ExpertMatmulArgs {
	// The arguments for expert 0. Expert e has its weights e * rows rows later, its bias e * rows elements later. out
	// (slots, rows), x (slots / share, cols).
	MatmulArgs m;
	const uint32_t* list; // ids of slots (expert_matvec), or tiles of shaders/shared/experts.h
	uint32_t share;       // slots that share a row of x
};
struct RouteArgs {
	uint32_t* ids;             // (rows, used)
	float* weights;            // (rows, used)
	const float* logits;       // (rows, n_experts)
	const float* bias;         // (n_experts), or null
	const float* expert_scale; // (n_experts), or null
	uint32_t n_experts, used, n_groups, used_groups;
	uint32_t sigmoid, normalise; // 0 or 1
	float scale;
	uint32_t near;             // 1: weights are softmaxes over near logits
	uint32_t softplus;         // 1: weights are roots of softplus of logits
	const uint32_t* of_tokens; // (tokens, used): experts of each token, or null
	const uint32_t* tokens;    // (rows)
};
struct SortSlotsArgs {
	uint32_t* tiles; // (n_tiles, KV_TILE_WORDS)
	const uint32_t* ids;
	uint32_t n_experts, n_slots, n_tiles;
};
struct MatchRmsArgs {
	float* out;
	const float *x, *w, *like;
	uint32_t dim;
	float eps;
};
struct HeadPlace { // as HeadRows: words of f32, or pairs of f16 in words; strides in words
	uint32_t* words;
	uint64_t head_stride, token_stride;
	uint32_t pairs;
	bool halves;
};
struct JoinHeadsArgs {
	HeadPlace out, a, b; // b: no pairs if there is none
	uint32_t n;
};
struct GaussianTopKArgs {
	float* out;
	const float* x;
	uint32_t n;
	float cut;
};
struct StreamPlaces { // as StreamRows; strides in rows of dim elements
	uint32_t first, row_stride, stream_stride;
};
struct StreamSumArgs {
	float* x;
	const float *y, *w; // w (tokens, m, k)
	uint32_t dim, m, k;
	StreamPlaces in_x, in_y;
	bool adds; // to x
};
struct StreamMixArgs {
	float* out;            // (tokens, dim)
	const float *x, *gate; // (tokens, m, dim)
	uint32_t dim, m;
};
struct StreamGateArgs {
	float* out;               // (tokens, m, dim); may be key
	const float *key, *query; // the same
	const float* value;       // (tokens, dim)
	uint32_t dim, m;
};
struct StreamCoefsArgs {
	float *pre, *post, *mix;       // (tokens, m), (tokens, m) or null, (tokens, m, m) or null
	const float *x, *scale, *base; // (tokens, n), (parts), (n)
	uint32_t tokens, m, n, rounds;
	float eps, post_scale, post_eps;
};
struct StreamAttendArgs {
	float* out;         // (tokens, dim)
	const float *x, *w; // w (dim)
	uint32_t dim, m;
	StreamPlaces in_x;
	float eps;
};
struct ExpertSumArgs {
	float* x;                 // (rows, dim), added to
	const float *y, *weights; // (rows, used, dim), (rows, used)
	uint32_t dim, used;
};

struct StatePlaces {      // StateRows of backends/ops.h
	const uint32_t* work; // (n, 4)
	const float* from;    // words
	float* to;            // words
};
struct ShortConvArgs {
	float* out;         // (rows, channels)
	const float *x, *w; // (rows, channels), (channels, taps)
	const float* bias;  // (channels) or null
	const float* gates; // (rows, channels) or null; then w is (taps, channels)
	StatePlaces rows;
	uint32_t channels, taps;
	uint32_t silu;  // 1: of the sums
	uint32_t mixes; // not 0: out is (mixes, rows, channels), w (mixes, channels)
	uint32_t n_rows;
};
struct PoolBlocksArgs {
	float* out;                      // (rows, dim)
	const float *x, *gates, *places; // (rows, width), the same, (block, width)
	StatePlaces rows;
	uint32_t dim, width, block; // width: dim, or twice that where blocks overlap
};
struct SsmScanArgs {
	float* out;                       // (rows, n_heads, v_dim)
	const float *x, *step;            // (rows, channels), (rows, n_heads)
	const float *rate, *shift, *skip; // (n_heads)
	StatePlaces rows;
	uint32_t n_heads, n_groups, k_dim, v_dim, channels;
};
struct SelectiveScanArgs {
	float* out;                       // (rows, channels)
	const float *x, *step, *b, *c;    // (rows, channels), the same, (rows, k_dim) each
	const float *rate, *shift, *skip; // (channels, k_dim), (channels) each
	StatePlaces rows;
	uint32_t channels, k_dim;
};
struct DeltaRuleArgs {
	float* out;                // (rows, n_heads, v_dim)
	const float* x;            // queries, keys, values
	const float *beta, *alpha; // (rows, n_heads); by_channel: alpha (rows, n_heads, k_dim)
	const float *rate, *shift; // (n_heads); by_channel: shift (n_heads, k_dim)
	StatePlaces rows;
	uint32_t n_heads, n_key_heads, k_dim, v_dim;
	uint32_t key_stride, value_stride, k_at, v_at; // of x: op::DeltaPlaces
	uint32_t tiled;                                // 1: head h has the key head h % n_key_heads
	uint32_t by_channel;                           // 1: each channel of keys has a decay of its own
	float eps, scale;
	float bound; // by_channel: of logarithms of decays; 0: none
	// delta_removal: (n_heads, k_dim) each, (rows, n_heads, v_dim); beta is then as alpha
	const float *removal, *taken, *bonus;
	float* own;
};

struct KvPlace {        // KvDst of backends/ops.h
	uint32_t *k, *v;    // words
	const uint32_t* at; // (rows, n_kv_heads, 2) word offsets
	uint32_t k_word_stride;
};
struct RopeStoreArgs {
	float* q;                     // (rows, n_heads, head_dim), rotated in place
	const float *k, *v;           // (rows, n_kv_heads, head_dim)
	const float* table;           // (rows, rotary_dim / 2, 2) cos, sin
	const float *q_norm, *k_norm; // (head_dim), or null
	KvPlace dst;
	uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
	uint32_t neox; // 1: pairs are (i, i + rotary_dim / 2)
	float eps;
	uint32_t weigh_last; // q_norm and k_norm multiply after the rotation (1) or before (0)
	// Channels of k where it is a latent, which is stored as it is: then v is rotated. 0: k is.
	uint32_t latent_dim;
	uint32_t first; // channel that is rotated
	uint32_t back;  // 1: by the negative angles
};
struct KvStoreArgs { // kv_store and kv_load
	uint32_t *k, *v; // (n_kv_heads, t_cap, words) words of two halves
	KvPlace place;
	uint32_t n_kv_heads, t_cap, first, n, k_words, v_words;
};

struct CodeSide { // how K, or V, of a page is stored: Quant of engine/kv_host/policy.h
	uint32_t bits, group;
	uint32_t per_channel; // 1: a (scale, zero) per channel
	uint32_t norms;       // 1: codes of a codebook and a norm per token and head; 0: codes have scale and zero
	uint32_t param_bits;  // of a norm, scale or zero: 16, or 8 and relative to the largest of the page and head
	uint32_t rotate, mean;
	uint32_t factors; // 1: V has channel factors
};
struct Scores {    // of products q . k
	float scale;   // 1 / sqrt(head_dim)
	float softcap; // a score s becomes softcap * tanh(s / softcap); 0: no cap
};
struct AttendArgs {
	float* parts;                        // (n_parts, n_heads, head_dim + 2): output, maximum, sum
	const float* q;                      // (n_rows, n_heads, head_dim)
	const uint32_t *k_codes, *v_codes;   // pool words
	const uint32_t *k_params, *v_params; // pool words; null for f16
	const uint32_t* v_factors;           // pool words; null without channel factors
	const uint32_t* balance;             // words; null for keys that were not balanced
	const uint32_t *work, *tables;       // (n_work, 8), words
	CodeSide k, v;
	uint32_t first_work, page;
	uint32_t n_rows, n_heads, n_kv_heads, head_dim;
	uint32_t item_rows, part_step;
	uint32_t blocks; // blocks of a work item and kv head
	Scores scores;
	// Latent attention: K is what is read as values too, and V the rest of the keys, of rope_dim channels.
	const float* q_rope; // (n_rows, n_heads, rope_dim)
	uint32_t rope_dim;
};
struct UnpackArgs {
	uint32_t *k, *v;                   // (rows, k_dim / 2), (rows, v_dim / 2) words of two halves
	const uint32_t *k_codes, *v_codes; // as in AttendArgs
	const uint32_t *k_params, *v_params;
	const uint32_t *work, *tables;
	CodeSide k_side, v_side;
	uint32_t first_work, page, k_dim, v_dim, first_row;
};
struct SeenTokens {       // KvRows::seen
	const uint32_t* bits; // (n_rows * sets, row_words), or null: a row sees all tokens up to its own
	uint32_t row_words, at, sets;
};
struct AttendPromptArgs {
	float *out, *lse;          // results, where row_parts is null; lse may be null
	float* parts;              // else the state goes to the row's last part
	const uint32_t* row_parts; // (n_rows, 2)
	const float* q;            // (n_rows, n_heads, head_dim)
	const uint32_t *k, *v;     // (n_kv_heads, t_cap, head_dim / 2) words of two halves
	uint32_t first, t_cap;
	uint32_t n_rows, n_heads, n_kv_heads, head_dim;
	Scores scores;
	uint32_t window;     // latest tokens that a row sees
	uint32_t chunked;    // else those since the last multiple of `window`
	const float* sinks;  // (n_heads), or null; unused if row_parts is not null
	const float* q_rope; // as in AttendArgs
	uint32_t rope_dim;
	uint32_t ahead; // rows behind its own that a row also sees; n_rows: all, whatever the window
	SeenTokens seen;
	const float* slopes; // (n_heads): what a score loses per token of distance; or null
};
struct AttendMergeArgs {
	float *out, *lse; // (rows, n_heads, head_dim), (rows, n_heads) or null
	const float* parts;
	const uint32_t* row_parts;
	uint32_t n_heads, head_dim;
	const float* sinks; // (n_heads), or null
};

struct PackSideArgs {               // kv_pack of K or of V
	const uint32_t* src;            // (n_kv_heads, t_cap, head_dim / 2) words of two halves
	const uint32_t *sources, *work; // rows of src; (n_work, 10)
	uint32_t *codes, *params;       // pool words; codes may be null where no work item has any
	const uint32_t* norm;           // K: balancer words, V: pool words of channel factors; null: neither
	CodeSide side;
	uint32_t is_k, k_block; // k_block: the parameters are already stored
	uint32_t t_cap, n_kv_heads, head_dim, page;
	float zero_shift, scale_factor; // XQuant eta: Eta in engine/kv_host/quant.h
};
struct KvBlockArgs {                // kv_block
	const uint32_t *k, *v;          // (n_kv_heads, t_cap, head_dim / 2) words of two halves
	const uint32_t *sources, *work; // rows of k and v; (n_work, 6)
	uint32_t* words;                // pool words
	const uint32_t* balance;        // words, or null
	uint32_t k_bits, t_cap, n_kv_heads, head_dim;
};

struct ScoreBy {                      // Saliency
	uint32_t attention, large, small; // 0 or 1
};
struct ScorePromptArgs {
	float* score; // (n_kv_heads, stride), added to
	const float *q, *lse;
	const uint32_t* rows; // (n_rows) of q
	const uint32_t* k;    // (n_kv_heads, t_cap, head_dim / 2) words of two halves
	uint32_t first, n_tokens, n_rows, n_heads, n_kv_heads, head_dim, t_cap, stride;
	Scores scores;
	ScoreBy by;
	const float* q_rope; // of latent attention, or null: (rows, n_heads, rope_dim)
	const uint32_t* v;   // rotated keys, as k
	uint32_t rope_dim;
	SeenTokens seen;
};
struct ScoreSlotsArgs {
	float* score; // words, added to
	const float *q, *lse;
	const uint32_t *rows, *work, *tables, *k_codes;
	uint32_t first_work, page, n_heads, n_kv_heads, head_dim;
	Scores scores;
	ScoreBy by;
	const float* q_rope; // as in ScorePromptArgs
	const uint32_t* v_codes;
	uint32_t rope_dim;
};
struct WeighArgs {
	float* weight; // words
	const float *q, *lse;
	const uint32_t *work, *tables, *k_codes;
	const uint32_t *k_params, *balance; // or null
	CodeSide k;
	uint32_t first_work, page, n_heads, n_kv_heads, head_dim;
	Scores scores;
	const float* q_rope;                // of latent attention, or null: (rows, n_heads, rope_dim)
	const uint32_t *v_codes, *v_params; // of rotated keys then, else null
	CodeSide v;
	uint32_t rope_dim;
};
struct TopArgs {
	uint32_t* picks; // words
	const float* weight;
	const uint32_t* work; // (n, 4)
};
struct CandidatesArgs {  // block_max, candidates
	uint32_t* list;      // (rows, KV_CANDIDATE_WORDS)
	uint32_t* block_max; // (rows, blocks)
	const float* x;      // (rows, n)
	uint32_t n, blocks, k;
};
struct ScatterArgs {
	uint32_t* words;
	const uint32_t* list; // (n, 2)
	uint32_t n;
};
struct PartShareArgs {
	float* out;           // (n, n_heads)
	const float* parts;   // (n_parts, n_heads, head_dim + 2)
	const uint32_t* work; // (n, 4)
	uint32_t n, n_heads, head_dim;
};
struct IndexScoreArgs {
	float* score;                          // (rows, capacity)
	const float *q, *weights;              // (rows, n_heads, dim), (rows, n_heads) or null
	const uint32_t *keys, *work;           // words, (n, 8)
	uint32_t n_heads, dim, capacity, pool; // pool: op::IndexScore's
};
struct IndexPickArgs {
	uint32_t* bits;       // (rows, n_words)
	const float* score;   // (rows, capacity)
	const uint32_t* seen; // (rows)
	uint32_t n_words, capacity, block, most, local;
};
struct IndexLiveArgs {
	uint32_t* tables;            // words
	const uint32_t *bits, *work; // (rows, n_words), (n, 8)
	uint32_t n_words;
};
struct ChannelMaxArgs {
	float* out;     // (n_kv_heads, head_dim)
	const float* x; // (rows, n_heads, head_dim)
	uint32_t rows, n_heads, n_kv_heads, head_dim;
};
struct KvBalanceArgs {
	uint32_t* out;      // (n_kv_heads, head_dim / 2) words of two halves
	const float* q_max; // (n_kv_heads, head_dim)
	const uint32_t* k;  // (n_kv_heads, t_cap, head_dim / 2) words of two halves
	uint32_t n, t_cap, n_kv_heads, head_dim;
};

struct KernelEntry {
	const char* name = nullptr;
	const void* entry = nullptr; // what the runtime launches
};
template <class Args> struct Kernel : KernelEntry {}; // a kernel takes one struct

struct Kernels {
	Kernel<EmbedArgs> embed;
	Kernel<RmsNormArgs> rmsnorm;
	Kernel<LayerNormArgs> layer_norm;
	Kernel<MatchRmsArgs> match_rms;
	Kernel<GaussianTopKArgs> gaussian_top_k;
	Kernel<StreamSumArgs> stream_sum;
	Kernel<StreamMixArgs> stream_mix;
	Kernel<StreamGateArgs> stream_gate;
	Kernel<StreamCoefsArgs> stream_coefs;
	Kernel<StreamAttendArgs> stream_attend;
	Kernel<ActivateArgs> activate;
	Kernel<MatmulArgs> matvec, matvec_row, matmul, matmul_wide;
	Kernel<ExpertMatmulArgs> expert_matvec, expert_matvec_row, expert_matmul;
	Kernel<RouteArgs> route;
	Kernel<SortSlotsArgs> sort_slots;
	Kernel<ExpertSumArgs> expert_sum;
	Kernel<ShortConvArgs> short_conv;
	Kernel<PoolBlocksArgs> pool_blocks;
	Kernel<DeltaRuleArgs> delta_rule, delta_removal;
	Kernel<SsmScanArgs> ssm_scan;
	Kernel<SelectiveScanArgs> selective_scan;
	Kernel<RopeStoreArgs> rope_store;
	Kernel<KvStoreArgs> kv_store, kv_load;
	Kernel<JoinHeadsArgs> join_heads;
	Kernel<AttendArgs> attend, attend_narrow;        // narrow: heads of at most kThreads channels
	Kernel<AttendArgs> attend_4, attend_2, attend_1; // at most so many queries of a work item
	Kernel<AttendPromptArgs> attend_prompt, attend_prompt_narrow;
	Kernel<AttendArgs> attend_latent;
	Kernel<UnpackArgs> unpack_latents;
	Kernel<AttendPromptArgs> attend_latent_prompt;
	Kernel<AttendMergeArgs> attend_merge;
	Kernel<PackSideArgs> pack_tokens, pack_channels, pack_pages, pack_runs;
	Kernel<KvBlockArgs> kv_block;
	Kernel<ScorePromptArgs> score_prompt;
	Kernel<ScoreSlotsArgs> score_slots;
	Kernel<WeighArgs> weigh;
	Kernel<TopArgs> top_k;
	Kernel<CandidatesArgs> block_max, candidates;
	Kernel<ScatterArgs> scatter;
	Kernel<PartShareArgs> part_share;
	Kernel<IndexScoreArgs> index_score, index_score_wide; // wide: keys of more than kNarrowKey channels
	Kernel<IndexPickArgs> index_pick;
	Kernel<IndexLiveArgs> index_live;
	Kernel<ChannelMaxArgs> channel_max;
	Kernel<KvBalanceArgs> kv_balance;
};

} // namespace kvrun::cuda
