// Chooses the kernel of an op on a device and its constants, both for real dispatches and for those that are only
// compiled to inspect the result (kernel_uses.h).
#pragma once
#include "backends/backend.h"
#include "backends/vulkan/kernels.h"
#include "engine/core/round.h"
#include "shared/flags.h"

namespace kvrun::vk {

// Drivers that run on the host's processor use separate kernels (shaders/texel/): one subgroup per workgroup, no
// barriers, reads through texel buffers. read_limits() sets texel_range if those are faster.
inline bool reads_texels(const Caps& c) { return c.texel_range > 0 && c.knobs[Knob::Texels]; }

inline uint64_t weight_range(const Caps& c) {
	return reads_texels(c) ? c.texel_range : c.range;
} // bytes that one binding holds

struct Choice {
	Kernel kernel;
	std::vector<SpecValue> spec;
};

// ---- embed, norms, RoPE, f16 keys and values

constexpr uint32_t kEmbedLocal = 64; // times 16 channels
Choice choose_embed(DType);
Choice choose_rmsnorm(const Caps&,
                      bool vec4_aligned); // vec4_aligned: views at multiples of 16 bytes, channels a multiple of 4
Choice choose_layer_norm(const Caps&, bool biased);
Choice choose_match_rms(const Caps&);
Choice choose_gaussian_top_k(const Caps&);
Choice choose_stream_sum(const Caps&);
Choice choose_stream_mix(const Caps&);
Choice choose_stream_gate(const Caps&);
Choice choose_stream_coefs(const Caps&);
Choice choose_stream_attend(const Caps&);
constexpr uint32_t kActivateLocal = 128; // times 4 elements
Choice choose_activate(uint32_t flags);  // ACTIVATE_*
Choice choose_rope_store(const Caps&, bool vec4_aligned, uint32_t head_dim, uint32_t flags);
Choice choose_kv_store(const Caps&, uint32_t head_dim, uint32_t rope_dim = 0); // of V, where it is another
Choice choose_kv_load();
Choice choose_join_heads(uint32_t flags); // JOIN_*

// ---- matmul

// Whether prompts are multiplied by cooperative matrices: products of f16, sums in f32.
bool uses_matrices(const Caps&);
bool buffers_matrices(const Caps&); // whether their tiles fit shared memory twice
struct MatmulChoice : Choice {
	Groups groups;
};
// Whether decode rows are rounded to int8 for weights of this type: matvec_int8.comp.
bool projects_in_int8(const Caps&, DType);
// Whether rows of prompts are also rounded: matmul_int8.comp, whose x is computed by round_rows.comp.
bool multiplies_in_int8(const Caps&, DType);
// What kernels of prompts take as x: f32, or the output of halve_rows.comp or of round_rows.comp.
enum class RowsOfX { Floats, Halves, Bytes };
RowsOfX rows_of_x(Kernel);
Choice choose_halve_rows();
constexpr uint32_t kHalvePieces = 64; // of a workgroup of halve_rows.comp, 8 elements each
Choice choose_round_rows();
constexpr uint32_t kRoundBlocks = 32; // of a workgroup of round_rows.comp, 32 elements each
// Whether x of so many decode rows is rounded by round_vec.comp before matvec_int8.comp, and COLS of the latter.
bool rounds_first(const Caps&, uint32_t tokens);
uint32_t int8_cols(uint32_t tokens);
Choice choose_round_vec(const Caps&, bool norm);
// Whether projections of decode rows by weights of this type also compute the norm of x.
bool fuses_norm(const Caps&, DType);
constexpr uint32_t kMatvecTokens = 8, kInt8Tokens = 16; // most of one dispatch of matvec.comp, matvec_int8.comp
// Most decode rows of one dispatch with weights of this type: the weights are read once for them.
uint32_t matvec_tokens(const Caps&, DType);
// rows: of all projections together; epilogue: MATMUL_*; norm: apply the norm to x, only if fuses_norm().
MatmulChoice choose_matmul(const Caps&, DType, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t epilogue,
                           bool decode, bool norm = false);

// ---- mixtures of experts

Choice choose_route(const Caps&, uint32_t n_experts, uint32_t flags); // ROUTE_*
Choice choose_sort_slots(const Caps&, uint32_t n_experts);
Choice choose_expert_sum(const Caps&);
// rows: of one expert, of all projections together; epilogue: MATMUL_*, and MATMUL_CLAMPED. Groups: y is slots
// (decode), or parts of tiles.
MatmulChoice choose_expert_matmul(const Caps&, DType, uint32_t rows, uint32_t cols, uint32_t slots, uint32_t n_experts,
                                  uint32_t epilogue, bool decode);

// ---- recurrent layers

constexpr uint32_t kShortConvLocal = 64;
struct ConvChoice : Choice {
	uint32_t rows; // of a workgroup; 0: all
};
ConvChoice choose_short_conv(const Caps&, uint32_t taps, uint32_t flags); // CONV_*
constexpr uint32_t kPoolLocal = 64;                                       // channels of a workgroup
Choice choose_pool_blocks(uint32_t flags);                                // POOL_*
struct StateChoice : Choice {
	uint32_t cols; // columns of a state in one workgroup
};
struct DeltaForm { // what DeltaRule's arguments say
	bool by_channel = false, bounded = false, removal = false;
};
StateChoice choose_delta_rule(const Caps&, uint32_t k_dim, uint32_t v_dim, DeltaForm);
StateChoice choose_ssm_scan(const Caps&, uint32_t k_dim, uint32_t v_dim);
constexpr uint32_t kSelectiveLocal = 64; // channels of a workgroup
Choice choose_selective_scan(uint32_t k_dim);

// ---- attention

struct AttendChoice : Choice {
	uint32_t heads;  // query heads of a kv head in one workgroup
	uint32_t blocks; // workgroups that share a kv head
	uint32_t tokens; // rows of a workgroup
};
// Whether attention of prompt rows uses cooperative matrices: products of f16, sums in f32.
bool attends_by_matrices(const Caps&, uint32_t head_dim);
bool scores_by_matrices(const Caps&, uint32_t head_dim); // the same of saliency from attention of prompt rows
bool chooses_register_scores(const Caps&);               // whether Knob::RegisterScores makes a difference
bool chooses_shared_queries(const Caps&);                // whether Knob::SharedQueries makes a difference
bool chooses_prompt_queries(const Caps&);                // whether Knob::PromptQueries does
uint32_t attend_quads(const Caps&); // of a tile of attend.comp in decode steps, if shared memory suffices
// Whether attention over tokens of 1 to 4 bits uses integer dot products, with queries and weights rounded to int8
// (queries of 4-bit keys to int16).
bool attends_in_int8(const Caps&);
// Whether decode steps use attend.comp (attend, attend_int8), which itself merges a row's partial states if they are
// few.
bool attend_merges(const Caps&);
void check_attend_format(const Format&, uint32_t head_dim); // throws Error{Unsupported}
// share: query heads per kv head. prompt: rows share a cache, and a workgroup takes several rows.
// flags: ATTEND_SOFTCAP, ATTEND_SINKS; flags of the format are added.
AttendChoice choose_attend(const Caps&, uint32_t share, const Format&, uint32_t head_dim, uint32_t page, bool prompt,
                           uint32_t flags = 0);
// The same where few tokens of the pages are live; a row at a time.
AttendChoice choose_attend_sparse(const Caps&, uint32_t share, const Format&, uint32_t head_dim, uint32_t page,
                                  uint32_t flags = 0);
AttendChoice choose_attend_prompt(const Caps&, uint32_t share, uint32_t head_dim, uint32_t flags);
Choice choose_attend_merge(const Caps&, uint32_t head_dim, uint32_t flags);
// Latent attention: n_heads share one latent of `rank` channels, and a rotated key of rope_dim.
struct LatentShape {
	uint32_t n_heads, rank, rope_dim;
};
AttendChoice choose_attend_latent(const Caps&, const LatentShape&, const Format&, uint32_t page, bool prompt,
                                  bool sparse = false, uint32_t flags = 0);
AttendChoice choose_attend_latent_prompt(const Caps&, const LatentShape&, uint32_t flags);
Choice choose_unpack_latent(const Caps&, uint32_t rank, uint32_t rope_dim, const Format&, uint32_t page);

// ---- saliency

struct ScoreChoice : Choice {
	uint32_t tokens; // of a workgroup of score_prompt
};
ScoreChoice choose_score_prompt(const Caps&, uint32_t head_dim, uint32_t share, uint32_t n_rows, Saliency = {},
                                bool softcap = false, bool seen = false);
// n_rows: most rows of a work item
Choice choose_score_slots(const Caps&, uint32_t head_dim, uint32_t share, uint32_t n_rows, uint32_t page, Saliency = {},
                          bool softcap = false);
// The same of latent attention: rank channels of a latent, rope_dim of a rotated key.
ScoreChoice choose_score_latent(const Caps&, uint32_t rank, uint32_t rope_dim, bool softcap, bool seen = false);
Choice choose_score_latent_slots(const Caps&, uint32_t rank, uint32_t rope_dim, uint32_t page, bool softcap);
AttendChoice choose_weigh_latent(const Caps&, const LatentShape&, const Format&, uint32_t page, uint32_t flags);
Choice choose_weigh(const Caps&, const Quant& k, uint32_t head_dim, uint32_t share, uint32_t page,
                    uint32_t flags = 0); // ATTEND_SOFTCAP
Choice choose_top_k(const Caps&);
Choice choose_block_max();
Choice choose_candidates(const Caps&);
Choice choose_scatter(const Caps&);
Choice choose_part_share(const Caps&);
struct IndexChoice : Choice {
	uint32_t rows; // of a work item, of a workgroup
};
IndexChoice choose_index_score(const Caps&, uint32_t dim, uint32_t flags);
Choice choose_index_pick(const Caps&);
constexpr uint32_t kLiveLocal = 64, kLiveGroups = 8; // workgroups of a work item
Choice choose_index_live();
Choice choose_channel_max(const Caps&);
Choice choose_kv_balance(const Caps&);

// ---- packing

Choice choose_pack_channels(const Quant&, uint32_t head_dim, uint32_t page, uint32_t flags);
Choice choose_pack_tokens(const Caps&, const Quant&, uint32_t head_dim, uint32_t page, uint32_t flags);
Choice choose_pack_pages(const Quant&, bool values, uint32_t head_dim, uint32_t page);
Choice choose_pack_runs(const Quant&, uint32_t head_dim, uint32_t page); // values with parameters in bytes
Choice choose_kv_block(const Caps&, uint32_t k_bits, bool balanced);

} // namespace kvrun::vk
