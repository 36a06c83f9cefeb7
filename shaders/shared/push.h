// Push constants: one struct per kernel, 4-byte fields only, at most 128 bytes. Read by GLSL and C++.
//
// A view starts at any multiple of 4 bytes, a descriptor only at multiples of the device's alignment (up to 256). The
// recorder binds at the next lower multiple and passes the difference to the shader: every struct begins with
// KV_PUSH_HEAD, and binding b's first word is word KV_AT(b) of the bound array (KV_AT(b) / 2, / 4 for uvec2, uvec4
// elements, whose views must be aligned to the element). One byte per binding, so 16 bindings.
#ifndef KVRUN_PUSH_H
#define KVRUN_PUSH_H
#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = unsigned int;
#define KV_PUSH_HEAD uint at[4] = {}; // filled by the recorder
#else
#define KV_PUSH_HEAD uint at[4];
#define KV_AT(b) ((p.at[(b) >> 2] >> (8u * ((b)&3u))) & 255u)
// layout(push_constant) uniform Push { XPush p; };
#endif

struct EmbedPush {
	KV_PUSH_HEAD
	uint n_tokens;
	uint dim;
	uint first_row;  // of the bound piece of the table
	uint n_rows;     // of the bound piece
	uint last_piece; // 1: rows past the end of the table also become zero
};
struct MatmulPush { // matmul and matvec kernels: up to three projections i of the same x
	KV_PUSH_HEAD
	uint cols;       // elements of a weight row and of a row of x
	uint tokens;     // rows of x
	uint rows[3];    // of w; 0: there is no projection i
	uint w_at[3];    // 16-byte piece of the bound range where w starts
	uint out_at[3];  // word of the bound range where row 0 of token 0 goes
	uint stride[3];  // words from one token to the next
	uint bias_at[3]; // word of the bound range
	uint bias;       // bit i: projection i has one
	float eps;       // of the norm of x; matvec kernels
	// Kernels of experts: w has n_experts * rows[i] rows; expert first_expert comes first.
	uint share;        // slots that share a row of x
	uint first_expert; // of the bound range
	uint n_experts;    // of the bound range
	uint groups;       // workgroups of the whole dispatch, which may run in pieces; matvec_int8
};
#define MATMUL_STORE 0u  // epilogue: out = sum
#define MATMUL_ADD 1u    // out += sum
#define MATMUL_SWIGLU 2u // out = silu(sum of projection 0) * sum of projection 1
#define MATMUL_GATE 3u   // out = silu(out) * sum
struct RoutePush {
	KV_PUSH_HEAD
	uint n_experts;
	uint used;
	uint rows;
	uint row_stride; // row = group x + group y * row_stride
	uint n_groups;
	uint used_groups;
	float scale;
};
struct SortSlotsPush {
	KV_PUSH_HEAD
	uint n_experts;
	uint n_slots;
	uint n_tiles;
};
struct ExpertSumPush {
	KV_PUSH_HEAD
	uint dim;
	uint used;
	uint rows;
	uint row_stride; // row = group y + group z * row_stride
};
struct RoundRowsPush {
	KV_PUSH_HEAD
	uint blocks; // of a row, 32 elements each
	uint rows;
	uint row_stride; // row = group y + group z * row_stride
};
#define KV_HALVE_ELEMENTS 64u // rows of halve_rows.comp have a multiple of this many elements
struct HalveRowsPush {
	KV_PUSH_HEAD
	uint cols;
	uint pieces; // of a rounded row, 8 elements each
	uint rows;
	uint row_stride; // row = group y + group z * row_stride
};
struct RoundVecPush {
	KV_PUSH_HEAD
	uint blocks; // of a row, 32 elements each
	uint rows;   // of x
	uint cols;   // rows of the codes: COLS of the dispatch that reads them
	float eps;   // of the norm
};
struct RmsNormPush {
	KV_PUSH_HEAD
	uint dim;
	uint rows;
	uint row_stride; // row = group x + group y * row_stride: one grid dimension may hold only 65535
	float eps;
	uint groups; // rows of w, if there are several; match_rms: unused
};
struct LayerNormPush {
	KV_PUSH_HEAD
	uint dim;
	uint rows;
	uint row_stride; // as in RmsNormPush
	float eps;
	uint groups; // rows of w
};
struct GaussianTopKPush {
	KV_PUSH_HEAD
	uint dim;
	uint rows;
	uint row_stride; // as in RmsNormPush
	float cut;
};
struct StreamSumPush {
	KV_PUSH_HEAD
	uint dim;
	uint m;
	uint k;
	uint x_first;
	uint x_row_stride;    // in rows of dim elements
	uint x_stream_stride; // the same
	uint y_first;
	uint y_row_stride;
	uint y_stream_stride;
	uint rows;
	uint row_stride; // row = group y + group z * row_stride
	uint adds;       // 0: x is not read
};
struct StreamMixPush {
	KV_PUSH_HEAD
	uint dim;
	uint m;
	uint rows;
	uint row_stride; // as in StreamSumPush
};
struct StreamGatePush {
	KV_PUSH_HEAD
	uint dim;
	uint m;
	uint rows;       // of all streams
	uint row_stride; // as in RmsNormPush
};
struct StreamAttendPush {
	KV_PUSH_HEAD
	uint dim;
	uint m;
	uint first;
	uint rows;
	uint row_stride;    // as in RmsNormPush
	uint x_row_stride;  // in rows of dim elements
	uint stream_stride; // the same
	float eps;
};
struct StreamCoefsPush {
	KV_PUSH_HEAD
	uint m;
	uint n; // elements of a row of x
	uint rows;
	uint row_stride; // row = invocation x + group y * row_stride
	float eps;
	float post_scale;
	float post_eps;
	uint rounds;
};
struct ActivatePush {
	KV_PUSH_HEAD
	uint n;          // elements
	uint row_stride; // workgroup = group x + group y * row_stride
	float scale;
	float cap;
	uint each;           // elements of out and y that share one of x, with ACTIVATE_EACH
	float parameters[4]; // xielu: positive, negative, linear, limit; clamp: low, high
};
struct RopeStorePush {
	KV_PUSH_HEAD
	uint n_heads;
	uint n_kv_heads;
	uint rotary_dim;
	uint k_word_stride;
	uint rows;
	uint row_stride; // row = group x + group z * row_stride
	float eps;
	uint k_dim; // channels of k, with ROPE_OF_VALUES
	uint first; // channel that is rotated; rope_store_vec4 has 0
};
struct KvStorePush {
	KV_PUSH_HEAD
	uint n_kv_heads;
	uint k_words; // 32-bit words of a head: channels / 2
	uint v_words;
	uint t_cap; // rows per kv head in k, v
	uint first; // token of grid row 0
	uint n;     // tokens
	uint k_word_stride;
};
struct JoinHeadsPush {
	KV_PUSH_HEAD
	uint n_pairs; // pairs of channels of all tokens of a head of out
	uint pairs;   // of one token
	uint a_pairs;
	uint b_pairs;
	uint out_at; // word of token 0 and head 0; words from head to head, from token to token
	uint out_head;
	uint out_token;
	uint a_at;
	uint a_head;
	uint a_token;
	uint b_at;
	uint b_head; // 0: one head for all
	uint b_token;
};
struct UnpackPush {
	KV_PUSH_HEAD
	uint first_work;
	uint first_row; // of k and v, added to rows of work items
};
struct AttendPush {
	KV_PUSH_HEAD
	uint first_work;
	uint n_heads;
	uint n_kv_heads;
	uint blocks;     // workgroups that share a kv head's query heads
	uint n_rows;     // of q
	uint item_rows;  // rows a work item serves
	uint row_blocks; // workgroups that share them
	uint part_step;  // from a row's partial state to the next row's
	uint merges;     // 1: the last workgroup of a row and kv head merges its partial states; attend.comp, item_rows 1
	float scale;     // 1 / sqrt(head_dim)
	float softcap;   // unused without ATTEND_SOFTCAP
};
// Most partial states of a row that attend.comp merges. Only one workgroup per KV head merges there, so with more
// states a separate dispatch of attend_merge.comp, with one workgroup per query head, is faster.
#define MERGE_FEW 8u
struct AttendPromptPush {
	KV_PUSH_HEAD
	uint first; // token of row 0
	uint n_rows;
	uint n_heads;
	uint n_kv_heads;
	uint t_cap;      // tokens per kv head in k, v
	uint blocks;     // workgroups that share a kv head's query heads
	float scale;     // 1 / sqrt(head_dim)
	uint window;     // latest tokens that a row sees, or tokens of a chunk; unused without PROMPT_WINDOW
	float softcap;   // unused without PROMPT_SOFTCAP
	uint ahead;      // rows behind its own that a row also sees; n_rows: all, whatever the window
	uint seen_words; // of a row's bits, with PROMPT_SEEN
	uint seen_at;    // bit of token 0
	uint seen_sets;  // rows of bits for a row: 1, or the KV heads
};
struct AttendMergePush {
	KV_PUSH_HEAD
	uint n_heads;
};
struct KvPackPush {
	KV_PUSH_HEAD
	uint t_cap; // rows per kv head in the source
	uint n_kv_heads;
	float zero_shift;   // XQuant's eta: zero += zero_shift * scale * (2^bits - 1)
	float scale_factor; // 1 - 2 eta: scale *= scale_factor
};
struct KvBlockPush {
	KV_PUSH_HEAD
	uint t_cap; // rows per kv head in the source
	uint head_dim;
};
struct ScorePromptPush {
	KV_PUSH_HEAD
	uint first;    // token of row 0 of q
	uint n_tokens; // tokens that may be seen: first + rows of q
	uint n_rows;   // listed
	uint n_heads;
	uint n_kv_heads;
	uint t_cap;      // tokens per kv head in k
	uint stride;     // of score, from one kv head to the next
	float scale;     // 1 / sqrt(head_dim)
	float softcap;   // unused without SCORE_SOFTCAP
	uint seen_words; // of a row's bits, with SCORE_SEEN
	uint seen_at;    // bit of token 0
	uint seen_sets;  // rows of bits for a row: 1, or the KV heads
};
struct ScoreSlotsPush {
	KV_PUSH_HEAD
	uint first_work;
	uint n_heads;
	uint n_kv_heads;
	float scale;   // 1 / sqrt(head_dim)
	float softcap; // unused without SCORE_SOFTCAP
};
struct WeighPush {
	KV_PUSH_HEAD
	uint first_work;
	uint n_heads;
	uint n_kv_heads;
	float scale;   // 1 / sqrt(head_dim)
	float softcap; // unused without ATTEND_SOFTCAP
};
struct TopPush {
	KV_PUSH_HEAD
};
struct CandidatesPush { // block_max, candidates
	KV_PUSH_HEAD
	uint n;      // elements of a row
	uint blocks; // blocks of KV_LOGIT_BLOCK elements
	uint k;
};
struct ScatterPush {
	KV_PUSH_HEAD
	uint n;
};
struct PartSharePush {
	KV_PUSH_HEAD
	uint n_heads;
	uint head_dim;
};
struct IndexScorePush {
	KV_PUSH_HEAD
	uint n_heads;
	uint capacity; // columns of score
	uint n_items;
	uint item_stride; // work item = group x + group z * item_stride
	uint pool;        // keys of a score, with INDEX_POOL: a power of two
};
struct IndexPickPush {
	KV_PUSH_HEAD
	uint n_words;  // of a row of bits
	uint capacity; // columns of score
	uint block;    // tokens: 1, 2, 4, 8, 16 or a multiple of 32
	uint most;     // blocks
	uint local;    // op::IndexPick's
};
struct IndexLivePush {
	KV_PUSH_HEAD
	uint n_words; // of a row of bits
};
struct ChannelMaxPush {
	KV_PUSH_HEAD
	uint n_rows;
	uint n_heads;
	uint n_kv_heads;
	uint head_dim;
};
struct KvBalancePush {
	KV_PUSH_HEAD
	uint n;     // rows of k
	uint t_cap; // rows per kv head in k
	uint head_dim;
};

struct ShortConvPush {
	KV_PUSH_HEAD
	uint channels;
	uint mixes; // with CONV_MIXES
	uint plane; // elements of a mix
};
struct PoolBlocksPush {
	KV_PUSH_HEAD
	uint dim;
	uint block; // tokens
};
struct DeltaRulePush {
	KV_PUSH_HEAD
	uint n_heads;
	uint n_key_heads;
	uint v_dim;
	uint key_stride; // elements from a row's queries to the next one's
	uint value_stride;
	uint k_at;  // elements from a row's queries to its keys
	uint v_at;  // elements from the first row's queries to its values
	uint tiled; // 1: head h has the key head h % n_key_heads, else h / (n_heads / n_key_heads)
	float eps;
	float scale; // of queries: 1 / sqrt(k_dim)
	float bound; // of logarithms of decays, with DELTA_BOUNDED
};
struct SsmScanPush {
	KV_PUSH_HEAD
	uint n_heads;
	uint n_groups;
	uint v_dim;
	uint channels; // of a row of x
};
struct SelectiveScanPush {
	KV_PUSH_HEAD
	uint channels;
};

#ifdef __cplusplus
}
#endif
#endif
