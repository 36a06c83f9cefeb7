// Chooses the kernel and constants of an op on a device: all but products with weights.
#include "backends/vulkan/kernel_choice_parts.h"
#include "engine/core/round.h"
#include "shared/push.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {

Kernel build_of(Kernel kernel, uint32_t have) {
	const std::span<const KernelBlob> all = kernel_blobs();
	size_t best = size_t(kernel);
	for (size_t i = 0; i < all.size(); ++i)
		if (all[i].of == kernel && !(all[i].needs & ~have) &&
		    std::popcount(all[i].needs) > std::popcount(all[best].needs))
			best = i;
	return Kernel(best);
}

namespace {

bool packed(const Quant& q) { return q.bits < 16; }

// Workgroup size of kernels that reduce over a workgroup. A software driver runs one subgroup without barriers many
// times faster than a workgroup with barriers.
uint32_t reduce_local(const Caps& c, uint32_t wanted) {
	return c.is_cpu && c.subgroup_ops ? c.subgroup : std::min(wanted, c.workgroup);
}
uint32_t lanes(const Caps& c) { return c.is_cpu ? c.subgroup : 64; }
// Kernels of few workgroups that each read thousands of vectors: latency is the limit, so many lanes share the work.
uint32_t wide_local(const Caps& c) { return c.is_cpu ? kLocal : std::min(512u, std::bit_floor(c.workgroup)); }

} // namespace

// ---- embed, norms, RoPE, f16 keys and values

Choice choose_embed(DType t) {
	return {build_of(Kernel::embed, grid_of(t)), {{SPEC_LOCAL_X, kEmbedLocal}, {SPEC_WTYPE, uint32_t(t)}}};
}

Choice choose_rmsnorm(const Caps& c, bool vec4_aligned) {
	return {build_of(Kernel::rmsnorm, texels_of(c) | (vec4_aligned ? need::vec4 : 0)),
	        {{SPEC_LOCAL_X, reduce_local(c, 256)}}};
}

Choice choose_layer_norm(const Caps& c, bool biased) {
	return {Kernel::layer_norm, {{SPEC_LOCAL_X, reduce_local(c, 256)}, {SPEC_FLAGS, biased ? LAYER_NORM_BIAS : 0}}};
}
Choice choose_match_rms(const Caps& c) { return {Kernel::match_rms, {{SPEC_LOCAL_X, reduce_local(c, 256)}}}; }
Choice choose_gaussian_top_k(const Caps& c) { return {Kernel::gaussian_top_k, {{SPEC_LOCAL_X, reduce_local(c, 256)}}}; }
Choice choose_stream_sum(const Caps& c) { return {Kernel::stream_sum, {{SPEC_LOCAL_X, c.is_cpu ? 32u : 64u}}}; }
Choice choose_stream_mix(const Caps& c) { return {Kernel::stream_mix, {{SPEC_LOCAL_X, c.is_cpu ? 32u : 64u}}}; }
Choice choose_stream_gate(const Caps& c) { return {Kernel::stream_gate, {{SPEC_LOCAL_X, reduce_local(c, 256)}}}; }
Choice choose_stream_coefs(const Caps& c) { return {Kernel::stream_coefs, {{SPEC_LOCAL_X, c.is_cpu ? 8u : 64u}}}; }
Choice choose_stream_attend(const Caps& c) { return {Kernel::stream_attend, {{SPEC_LOCAL_X, reduce_local(c, 256)}}}; }
Choice choose_activate(uint32_t flags) {
	static_assert(
	    uint32_t(Activation::Silu) == ACTIVATE_SILU && uint32_t(Activation::GeluTanh) == ACTIVATE_GELU_TANH &&
	    uint32_t(Activation::Relu2) == ACTIVATE_RELU2 && uint32_t(Activation::Sigmoid) == ACTIVATE_SIGMOID &&
	    uint32_t(Activation::Xielu) == ACTIVATE_XIELU && uint32_t(Activation::GeluQuick) == ACTIVATE_GELU_QUICK &&
	    uint32_t(Activation::Clamp) == ACTIVATE_CLAMP && uint32_t(Activation::Softplus) == ACTIVATE_SOFTPLUS &&
	    uint32_t(Activation::Relu) == ACTIVATE_RELU && uint32_t(Activation::Gelu) == ACTIVATE_GELU);
	return {Kernel::activate, {{SPEC_LOCAL_X, kActivateLocal}, {SPEC_FLAGS, flags}}};
}

Choice choose_rope_store(const Caps& c, bool vec4_aligned, uint32_t head_dim, uint32_t flags) {
	const uint32_t local = reduce_local(c, std::clamp(std::bit_ceil(head_dim / 2), 32u, kLocal));
	return {build_of(Kernel::rope_store, texels_of(c) | (vec4_aligned ? need::vec4 : 0)),
	        {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}, {SPEC_FLAGS, flags}}};
}

Choice choose_kv_store(const Caps& c, uint32_t head_dim, uint32_t rope_dim) { // a small prompt fills only a few lanes
	Choice r = {Kernel::kv_store, {{SPEC_LOCAL_X, c.is_cpu ? 32 : kLocal}, {SPEC_HEAD_DIM, head_dim}}};
	if (rope_dim) r.spec.push_back({SPEC_ROPE_DIM, rope_dim});
	return r;
}
Choice choose_join_heads(uint32_t flags) { return {Kernel::join_heads, {{SPEC_LOCAL_X, kLocal}, {SPEC_FLAGS, flags}}}; }
Choice choose_kv_load() { return {Kernel::kv_load, {{SPEC_LOCAL_X, kLocal}}}; }

// ---- attention

namespace {

uint32_t attend_flags(const Format& f) {
	uint32_t flags = f.k.prescale == Prescale::Balance ? ATTEND_BALANCE : 0;
	if (packed(f.k))
		flags |= (f.k.scale == Scale::PerChannel ? ATTEND_K_PER_CHANNEL : 0) |
		         (f.k.scale == Scale::Codebook ? ATTEND_K_CODEBOOK : 0) | (f.k.rotate ? ATTEND_K_ROTATED : 0) |
		         (f.k.param_bits == 8 ? ATTEND_K_BYTES : 0) | (f.k.mean ? ATTEND_K_MEANS : 0);
	if (packed(f.v))
		flags |= (f.v.prescale == Prescale::SqrtMax ? ATTEND_V_FACTORS : 0) |
		         (f.v.scale == Scale::Codebook ? ATTEND_V_CODEBOOK : 0) | (f.v.rotate ? ATTEND_V_ROTATED : 0) |
		         (f.v.param_bits == 8 ? ATTEND_V_BYTES : 0);
	return flags;
}
// Whether attention uses integer dot products for these keys or values.
bool multiplies_int8(const Caps& c, const Quant& q) {
	return attends_in_int8(c) && (q.bits < 4 || (q.bits == 4 && q.scale != Scale::Codebook));
}
uint32_t dot_flags(const Caps& c, const Format& f) {
	const uint32_t values = ATTEND_V_DOT | (c.vendor == kNvidia ? ATTEND_SLOW_CONVERT : 0);
	const uint32_t keys = ATTEND_K_DOT | (c.vendor == kNvidia ? ATTEND_LOAD_AHEAD : 0);
	return (multiplies_int8(c, f.k) ? keys : 0) | (multiplies_int8(c, f.v) ? values : 0);
}
// Whether a lane loads the keys and values of four steps before it uses the first. On an H200 attention over f16 pages
// of 128 tokens took 14 % less time; over pages of 32 tokens, the window of policies that pack, it took more.
bool loads_ahead(const Caps& c, const Format& f, uint32_t page) {
	return c.vendor == kNvidia && !packed(f.k) && !packed(f.v) && page >= 128;
}
// Channels that share parameters; a whole head if parameters are not per token.
uint32_t run_of(const Quant& q, uint32_t head_dim) {
	return packed(q) && q.scale == Scale::PerToken ? q.group : head_dim;
}

struct AttendCut {                  // how work is cut into workgroups, by the device and the query heads per kv head
	uint32_t local;                 // lanes
	uint32_t quad_lanes = 1;        // lanes that share 4 tokens
	uint32_t heads, blocks, tokens; // as in AttendChoice
};

void cut_heads(AttendCut& cut, uint32_t share, uint32_t most) {
	cut.blocks = ceil_div(share, most);
	cut.heads = ceil_div(share, cut.blocks);
	cut.tokens = std::max(1u, most / cut.heads);
}
// A query takes at least 12 registers per lane: 8 queries fit if a lane may have 255 registers, or if registers are
// memory. Heads of more than 256 channels have half as many: a query's sums and shared memory double.
uint32_t most_queries(const Caps& c, uint32_t head_dim) {
	const uint32_t most = c.is_cpu || c.vendor == kNvidia ? 8 : c.vendor == kIntel ? 2 : 4;
	return head_dim > 256 ? most / 2 : most;
}

AttendCut attend_cut(const Caps& c, uint32_t share, uint32_t head_dim) {
	AttendCut cut;
	cut_heads(cut, share, most_queries(c, head_dim));
	cut.local = c.is_cpu ? 8 : c.vendor == kAmd ? 64 : 32;
	return cut;
}

// Shared memory of attend.comp, bytes: queries; scales of keys, scaled queries or weights; quads; reductions; rounded
// queries and weights (lib/key_scales.glsl, lib/attend.glsl, lib/dot_memory.glsl).
uint32_t shared_bytes(const Caps& c, const AttendCut& cut, const Format& f, uint32_t head_dim, uint32_t page) {
	const bool dot_k = multiplies_int8(c, f.k), dot_v = multiplies_int8(c, f.v);
	const bool channel = packed(f.k) && f.k.scale == Scale::PerChannel, scaled = channel && !dot_k,
	           fold = packed(f.v) && !dot_v && f.v.prescale != Prescale::SqrtMax && run_of(f.v, head_dim) >= head_dim;
	const uint32_t quads = cut.local / cut.quad_lanes, n = cut.heads * cut.tokens;
	const uint32_t queries = n * head_dim * 4, pages = std::max(1u, quads * 4 / page);
	const uint32_t scales = scaled ? pages * head_dim * 4 : 0, weights = dot_v ? 16 : n * quads * 16;
	const uint32_t sums = cut.local * 32, key_scales = scales * (scales > quads * 16 ? 1 : n);
	const uint32_t work = std::max({key_scales, weights, dot_v ? 0 : sums});
	const uint32_t zeros = fold ? n * quads * 4 : 0;
	const uint32_t rounded = dot_k ? n * ceil_div(head_dim, 32) * (f.k.bits == 4 ? 64 : 32) * (channel ? pages : 1) : 0;
	const uint32_t runs = n * std::max(1u, head_dim / run_of(f.v, head_dim)), bytes = dot_v ? runs * quads * 4 : 0;
	const uint32_t dots = std::max(channel ? std::max(rounded, bytes) : rounded + bytes, dot_v ? sums : 0);
	const uint32_t blocks = dot_v ? runs * quads * 2 : 0; // units of the blocks
	constexpr uint32_t window = 16;                       // lib/live_quads.glsl
	return queries + work + zeros + dots + blocks + quads * (dot_v ? 2 : 16) + n * (cut.local + 8) * 4 + window * 4;
}

// On AMD, shared memory limits how many workgroups of 4 query heads a processor holds. Two lanes to a quad give twice
// as many subgroups for the same shared memory. On NVIDIA a subgroup's chain of loads is half as long: attention of an
// H200 over 8k tokens took 23 % less time with kivi2, 8 % with f16. Heads of 64 channels have half as many pieces of
// values: with integer products, a tile would have fewer blocks of values than lanes that could take one.
uint32_t attend_quad_lanes(const Caps& c, uint32_t heads, uint32_t head_dim, bool dot_v) {
	const bool gains = c.vendor == kAmd || c.vendor == kNvidia;
	return gains && c.subgroup_ops && c.subgroup >= 8 && heads % 2 == 0 && head_dim >= (dot_v ? 128 : 64) ? 2 : 1;
}

AttendCut attend_cut(const Caps& c, uint32_t share, const Format& f, uint32_t head_dim, uint32_t page, bool prompt) {
	AttendCut cut = attend_cut(c, share, head_dim);
	// These spill on RDNA 3 with 4 queries, where Mesa 22.3 gives a lane 144 registers.
	const bool planes = f.k.bits == 3 && f.k.scale != Scale::Codebook && !multiplies_int8(c, f.k);
	if (c.vendor == kAmd && (planes || (f.k.bits == 8 && f.v.bits == 3)))
		cut_heads(cut, share, std::min(2u, most_queries(c, head_dim)));
	if (!prompt) {
		cut.tokens = 1, cut.local = attend_quads(c);
		cut.quad_lanes = attend_quad_lanes(c, cut.heads, head_dim, multiplies_int8(c, f.v));
		cut.local *= cut.quad_lanes;
	}
	while (shared_bytes(c, cut, f, head_dim, page) > c.shared_bytes) {
		if (cut.local > 32)
			cut.local /= 2;
		else if (cut.tokens > 1)
			cut.tokens /= 2;
		else if (cut.heads > 1)
			cut_heads(cut, share, cut.heads / 2), cut.tokens = 1;
		else
			break;
	}
	return cut;
}

// Constants of lib/attend_matrix.glsl: queries of a workgroup, rows of results staged at a time, tokens of a tile, most
// channels of a head; of score_prompt_matrix, whose registers hold whole keys. With more queries, a subgroup has more
// rows.
constexpr uint32_t kMatrixQueries = 64, kMatrixStaged = 16, kMatrixKeys = 32, kMatrixHeadDim = 512,
                   kScoreMatrixHeadDim = 256;

struct AttendTile { // of lib/attend_matrix.glsl
	uint32_t queries, keys;
	bool kept;           // queries stay in shared memory
	uint32_t groups = 2; // subgroups that share queries: these and their sums take registers
	// Scores stay in registers: the build for matrix_rows. With more queries, there are more subgroups.
	bool registers = false;
};

uint32_t subgroups(const Caps& c, const AttendTile& t) {
	return (t.registers ? t.queries : std::min(t.queries, kMatrixQueries)) / std::max(c.matrix.m, 8u) * t.groups;
}
// Parts of the channels, where there are more subgroups than matrices of keys.
uint32_t splits(const Caps& c, const AttendTile& t) { return std::max(1u, t.groups * c.matrix.n / t.keys); }

// Whether there are whole matrices and lanes of a row of scores, and shared memory as declared there, in pieces of 16
// bytes.
bool fits(const Caps& c, uint32_t head_dim, const AttendTile& t) {
	const MatrixShape& m = c.matrix;
	if (t.keys % m.n || t.keys % m.k) return false;
	const uint32_t all_subgroups = subgroups(c, t),
	               rows = t.queries / all_subgroups; // rows that lanes turn into weights
	if (all_subgroups * c.subgroup > c.workgroup) return false;
	if (t.registers ? m.n != m.k : rows < 1 || rows > c.subgroup) return false;
	const uint32_t n_splits = splits(c, t), steps = head_dim / m.k / n_splits;
	const bool over_keys = n_splits > 2;
	if (head_dim / m.k % n_splits || (over_keys && t.groups * m.n % t.keys)) return false;
	const uint32_t pieces = head_dim / 8, staged = kMatrixStaged * head_dim / 4;
	const uint32_t scores = t.registers ? 0 : n_splits * t.queries * (t.keys / 4 + 1);
	const uint32_t keys = t.keys * (pieces + 1), values = head_dim * (t.keys / 8 + 1);
	const uint32_t tile = values + (over_keys ? std::max(keys, scores) : keys + scores);
	const uint32_t before = head_dim > 256 ? staged / 4 : staged; // STAGED_QUERIES rows of queries
	const auto queries = [&](uint32_t parts) { return before + t.queries * (pieces / parts + 1); };
	const uint32_t parts = t.kept || queries(1) <= tile ? 1 : queries(2) <= tile ? 2 : 4;
	const uint32_t after = std::max(staged, t.registers ? t.queries * m.n / 2 : 0), least = std::max(tile, after);
	const uint32_t all = t.kept ? least + t.queries * (pieces + 1) : std::max(least, queries(parts));
	return steps % parts == 0 && 16 * all + 4 * t.queries <= c.shared_bytes;
}
// With 32 tokens, or 16 where no more fit; none: no keys.
AttendTile attend_tile(const Caps& c, uint32_t head_dim, bool kept) {
	for (const uint32_t keys : {kMatrixKeys, kMatrixKeys / 2})
		if (const AttendTile t{kMatrixQueries, keys, kept}; fits(c, head_dim, t)) return t;
	return {};
}
// As many subgroups share queries as it takes for each to keep at most `channels` of their channels.
AttendTile split_tile(const Caps& c, uint32_t head_dim, uint32_t channels) {
	const uint32_t n_splits = std::bit_ceil(ceil_div(head_dim, channels));
	for (const uint32_t queries : {kMatrixQueries, kMatrixQueries / 2})
		for (const uint32_t keys : {kMatrixKeys, kMatrixKeys / 2})
			if (const AttendTile t{queries, keys, false, n_splits * keys / c.matrix.n}; fits(c, head_dim, t)) return t;
	return {};
}
bool in_registers(const Caps& c) { return c.matrix_rows && c.knobs[Knob::RegisterScores]; }
AttendTile attend_tile(const Caps& c, uint32_t head_dim) {
	// Xe2's registers do not hold queries of wide heads beside their sums.
	if (c.vendor == kIntel)
		return head_dim > 128 ? split_tile(c, head_dim, 64) : attend_tile(c, head_dim, head_dim > 64);
	if (in_registers(c) && head_dim <= 128)
		for (const uint32_t queries : {c.knobs[Knob::PromptQueries], kMatrixQueries})
			if (const AttendTile t{queries, kMatrixKeys, c.knobs[Knob::SharedQueries] != 0, 1, true};
			    fits(c, head_dim, t))
				return t;
	if (c.knobs[Knob::SharedQueries])
		if (const AttendTile t = attend_tile(c, head_dim, /*kept=*/true); t.keys) return t;
	// A lane's share of twice as many rows fits 255 registers up to 128 channels.
	if (const AttendTile t{c.knobs[Knob::PromptQueries], kMatrixKeys, false}; head_dim <= 128 && fits(c, head_dim, t))
		return t;
	// On AMD a processor holds twice as many subgroups if each keeps half of the channels of wide queries.
	if ((c.vendor == kAmd && head_dim > 128) || head_dim > 256)
		if (const AttendTile t = split_tile(c, head_dim, 128); t.keys) return t;
	return attend_tile(c, head_dim, /*kept=*/false);
}

AttendCut matrix_cut(const Caps& c, uint32_t share, const AttendTile& tile) {
	AttendCut cut;
	cut_heads(cut, share, tile.queries);
	cut.local = subgroups(c, tile) * c.subgroup;
	return cut;
}

// The kernel for a device (with `matrices`, the one of lib/attend_matrix.glsl) and how it cuts rows.
AttendChoice attend_choice(const Caps& c, Kernel kernel, bool matrices, bool int8, uint32_t head_dim,
                           const AttendCut& cut, std::vector<SpecValue> spec) {
	spec.push_back({SPEC_HEAD_DIM, head_dim});
	spec.insert(spec.end(), {{SPEC_LOCAL_X, cut.local}, {SPEC_HEADS, cut.heads}, {SPEC_COLS, cut.tokens}});
	if (cut.quad_lanes > 1) spec.push_back({SPEC_QUAD_LANES, cut.quad_lanes});
	if (matrices) {
		const AttendTile tile = attend_tile(c, head_dim);
		spec.insert(spec.end(), {{SPEC_SUBGROUP_COLS, tile.groups}, {SPEC_TILE, tile.keys}});
		if (tile.queries != kMatrixQueries) spec.push_back({SPEC_QUERIES, tile.queries});
		// Registers that hold whole wide queries (RDNA 3 holds every element in two lanes) hold no tile beside them.
		const uint32_t most_ahead = c.vendor == kIntel ? 64 : c.vendor == kAmd && splits(c, tile) == 1 ? 128 : 256;
		if (head_dim > most_ahead) spec.push_back({SPEC_AHEAD, 0});
		if (tile.kept) spec.push_back({SPEC_KEPT, 1});
		add_matrices(spec, c);
	}
	const bool rows = matrices && attend_tile(c, head_dim).registers;
	const uint32_t have =
	    texels_of(c) | (matrices ? need::matrices : 0) | (rows ? need::matrix_rows : 0) | (int8 ? need::int8 : 0);
	return {{build_of(kernel, have), std::move(spec)}, cut.heads, cut.blocks, cut.tokens};
}

} // namespace

// With subgroups of 32 lanes, two share a tile: the same number of subgroups gives half as many partial states as with
// one per tile.
uint32_t attend_quads(const Caps& c) { return c.is_cpu ? 8 : c.vendor == kAmd || c.vendor == kNvidia ? 64 : 32; }

// At least 4: lib/values_dot.glsl shares a unit among 4 lanes.
bool attends_in_int8(const Caps& c) {
	return c.int_dot && c.knobs[Knob::AttendInt8] && c.subgroup_ops && c.subgroup >= 4 && !reads_texels(c);
}
// Metal orders one workgroup's memory before another's only since its version 3.2. MoltenVK, and Venus on top of it,
// did not before (MoltenVK issue 2497): attend.comp would merge states that are still under way.
bool attend_merges(const Caps& c) { return !reads_texels(c) && c.vendor != kApple; }

// Independent of the number of rows, so that a row has the same bits in any chunk of its prompt.
bool attends_by_matrices(const Caps& c, uint32_t head_dim) {
	if (!uses_matrices(c) || !c.attend_matrices || !c.knobs[Knob::AttendMatrices] || head_dim > kMatrixHeadDim ||
	    head_dim % 8)
		return false;
	const MatrixShape& m = c.matrix;
	const auto whole = [&](uint32_t size) { return size >= 8 && head_dim % size == 0; };
	return m.m <= 16 && whole(m.n) && whole(m.k) && attend_tile(c, head_dim).keys;
}

bool chooses_register_scores(const Caps& c) {
	Caps on = c;
	on.knobs[Knob::RegisterScores] = 1;
	return attends_by_matrices(c, 64) && attend_tile(on, 64).registers;
}

bool chooses_shared_queries(const Caps& c) {
	return c.vendor != kIntel && attends_by_matrices(c, 64) && attend_tile(c, 64, /*kept=*/true).keys;
}

bool chooses_prompt_queries(const Caps& c) {
	// RDNA 3 spills with f16 pages and holds 4 waves then; Xe2 keeps queries in shared memory.
	if (c.vendor != kNvidia || !attends_by_matrices(c, 64)) return false;
	AttendTile twice = attend_tile(c, 64);
	twice.queries = 2 * kMatrixQueries;
	return (twice.registers || !twice.kept) && fits(c, 64, twice);
}

void check_attend_format(const Format& f, uint32_t head_dim) {
	for (const Quant& q : {f.k, f.v}) {
		const bool bits = (q.bits >= 1 && q.bits <= 4) || q.bits == 8 || q.bits == 16;
		const bool runs = !packed(q) || q.scale != Scale::PerToken || q.group % head_dim == 0 ||
		                  (q.group % 32 == 0 && head_dim % q.group == 0);
		if (!bits || !runs || (&q == &f.v && packed(q) && q.scale == Scale::PerChannel))
			fail(Code::Unsupported, "Vulkan has no attention over {} bits per {} in groups of {}", q.bits,
			     q.scale == Scale::PerChannel ? "channel" : "token", q.group);
	}
}

// Parts of a format that make no difference are set to one value, so that pipelines are shared.
AttendChoice choose_attend_sparse(const Caps& c, uint32_t share, const Format& f, uint32_t head_dim, uint32_t page,
                                  uint32_t flags) {
	if (packed(f.k) && (f.k.scale == Scale::PerChannel || f.k.mean)) // a workgroup stages parameters of pages
		return choose_attend(c, share, f, head_dim, page, /*prompt=*/false, flags | ATTEND_SKIP);
	Caps floats = c;
	floats.int_dot = false; // integer products of values take blocks of consecutive quads
	return choose_attend(floats, share, f, head_dim, page, /*prompt=*/false, flags | ATTEND_GATHER);
}

AttendChoice choose_attend(const Caps& c, uint32_t share, const Format& f, uint32_t head_dim, uint32_t page,
                           bool prompt, uint32_t flags) {
	const bool matrices = prompt && attends_by_matrices(c, head_dim);
	const AttendCut cut =
	    matrices ? matrix_cut(c, share, attend_tile(c, head_dim)) : attend_cut(c, share, f, head_dim, page, prompt);
	const uint32_t dots = matrices ? 0 : dot_flags(c, f),
	               ahead = loads_ahead(c, f, page) && !matrices ? ATTEND_LOAD_AHEAD : 0;
	return attend_choice(c, Kernel::attend, matrices, dots != 0, head_dim, cut,
	                     {{SPEC_K_BITS, f.k.bits},
	                      {SPEC_V_BITS, f.v.bits},
	                      {SPEC_K_GROUP, run_of(f.k, head_dim)},
	                      {SPEC_V_GROUP, run_of(f.v, head_dim)},
	                      {SPEC_FLAGS, attend_flags(f) | dots | ahead | flags},
	                      {SPEC_PAGE, page}});
}

namespace {

constexpr uint32_t kLatentTile = 8; // tokens

// Shared memory of lib/latent.glsl, bytes.
uint32_t latent_bytes(const LatentShape& s, uint32_t queries, uint32_t local) {
	const uint32_t pieces = (s.rank + s.rope_dim) / 4;
	return kLatentTile * (pieces | 1) * 8 + queries * (pieces * 16 + local * 4 + kLatentTile * 4 + 8);
}

AttendChoice latent_choice(const Caps& c, Kernel kernel, const LatentShape& s, bool rows, std::vector<SpecValue> spec,
                           uint32_t more_bytes = 0) {
	const uint32_t local = std::clamp(std::bit_ceil(s.rank / 4), 32u, kLocal);
	uint32_t most = c.vendor == kIntel ? 4 : 8; // queries: a lane sums 4 channels of each
	while (most > 1 && latent_bytes(s, most, local) + more_bytes > c.shared_bytes) most /= 2;
	AttendCut cut;
	cut_heads(cut, s.n_heads, most);
	if (!rows) cut.tokens = 1;
	spec.insert(spec.end(), {{SPEC_LOCAL_X, local},
	                         {SPEC_HEADS, cut.heads},
	                         {SPEC_COLS, cut.tokens},
	                         {SPEC_HEAD_DIM, s.rank},
	                         {SPEC_ROPE_DIM, s.rope_dim},
	                         {SPEC_TILE, kLatentTile}});
	return {{kernel, std::move(spec)}, cut.heads, cut.blocks, cut.tokens};
}

} // namespace

static std::vector<SpecValue> latent_format(const LatentShape& s, const Format& f, uint32_t page, uint32_t flags) {
	return {{SPEC_K_BITS, f.k.bits},
	        {SPEC_V_BITS, f.v.bits},
	        {SPEC_K_GROUP, run_of(f.k, s.rank)},
	        {SPEC_V_GROUP, run_of(f.v, s.rope_dim)},
	        {SPEC_FLAGS, attend_flags({f.k, {}}) | flags},
	        {SPEC_PAGE, page}};
}

AttendChoice choose_attend_latent(const Caps& c, const LatentShape& s, const Format& f, uint32_t page, bool prompt,
                                  bool sparse, uint32_t flags) {
	constexpr uint32_t kWindowBytes = (64 + 65) * 4; // of lib/live_tokens.glsl
	return latent_choice(c, sparse ? Kernel::attend_latent_gather : Kernel::attend_latent, s, prompt,
	                     latent_format(s, f, page, flags), sparse ? kWindowBytes : 0);
}

AttendChoice choose_weigh_latent(const Caps& c, const LatentShape& s, const Format& f, uint32_t page, uint32_t flags) {
	return latent_choice(c, Kernel::weigh_latent, s, /*rows=*/false, latent_format(s, f, page, flags));
}

AttendChoice choose_attend_latent_prompt(const Caps& c, const LatentShape& s, uint32_t flags) {
	return latent_choice(c, Kernel::attend_latent_prompt, s, /*rows=*/true, {{SPEC_FLAGS, flags}});
}

Choice choose_unpack_latent(const Caps& c, uint32_t rank, uint32_t rope_dim, const Format& f, uint32_t page) {
	std::vector<SpecValue> spec = latent_format({1, rank, rope_dim}, f, page, 0);
	const uint32_t fit = std::bit_floor(c.shared_bytes / (rank * 4)); // tokens whose rotation has shared memory
	spec.insert(spec.end(), {{SPEC_LOCAL_X, kLocal},
	                         {SPEC_HEAD_DIM, rank},
	                         {SPEC_ROPE_DIM, rope_dim},
	                         {SPEC_TILE, std::clamp(fit, 1u, kLatentTile)}});
	return {Kernel::unpack_latent, std::move(spec)};
}

AttendChoice choose_attend_prompt(const Caps& c, uint32_t share, uint32_t head_dim, uint32_t flags) {
	const bool matrices = attends_by_matrices(c, head_dim) && !(flags & PROMPT_SLOPES);
	const AttendCut cut = matrices ? matrix_cut(c, share, attend_tile(c, head_dim)) : attend_cut(c, share, head_dim);
	return attend_choice(c, Kernel::attend_prompt, matrices, false, head_dim, cut, {{SPEC_FLAGS, flags}});
}

Choice choose_attend_merge(const Caps& c, uint32_t head_dim, uint32_t flags) {
	const uint32_t local = c.is_cpu ? 8u : std::min(256u, std::bit_floor(c.workgroup));
	return {Kernel::attend_merge, {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}, {SPEC_FLAGS, flags}}};
}

// ---- saliency

namespace {

constexpr uint32_t kQuadLanes = 8; // lanes of texel/score_*.comp, and its queries at a time

// One row, or as many rows at a time as fit beside the heads.
std::vector<SpecValue> texel_score(uint32_t head_dim, uint32_t share, uint32_t n_rows) {
	const uint32_t heads = std::min(share, kQuadLanes), rows = n_rows == 1 ? 1 : kQuadLanes / heads;
	return {{SPEC_LOCAL_X, kQuadLanes}, {SPEC_HEAD_DIM, head_dim}, {SPEC_HEADS, heads}, {SPEC_ROWS, rows}};
}

void add_saliency(Choice& x, Saliency s, bool softcap, bool seen = false) {
	const uint32_t length = s.key_length == KeyLength::Large   ? SCORE_KEY_LARGE
	                        : s.key_length == KeyLength::Small ? SCORE_KEY_SMALL
	                                                           : 0;
	const uint32_t flags = (s.attention ? 0 : SCORE_COUNT) | length | (softcap && s.attention ? SCORE_SOFTCAP : 0) |
	                       (seen ? SCORE_SEEN : 0);
	if (flags) x.spec.push_back({SPEC_FLAGS, flags});
}

} // namespace

bool scores_by_matrices(const Caps& c, uint32_t head_dim) {
	// Xe2's registers hold keys of 128 channels.
	return head_dim <= (c.vendor == kIntel ? 128 : kScoreMatrixHeadDim) && attends_by_matrices(c, head_dim);
}

ScoreChoice choose_score_prompt(const Caps& c, uint32_t head_dim, uint32_t share, uint32_t n_rows, Saliency s,
                                bool softcap, bool seen) {
	ScoreChoice x{{Kernel::score_prompt, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, head_dim}}}, lanes(c)};
	if (reads_texels(c))
		x = {{build_of(Kernel::score_prompt, need::texels), texel_score(head_dim, share, n_rows)}, kQuadLanes * 4};
	if (s.attention && scores_by_matrices(c, head_dim)) {
		const uint32_t local = std::min(256u, (c.vendor == kIntel ? 16 : 8) * c.subgroup); // Xe2: registers of queries
		x = {{build_of(Kernel::score_prompt, need::matrices),
		      {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}, {SPEC_HEADS, share}}},
		     local / c.subgroup * c.matrix.m};
		add_matrices(x.spec, c);
	}
	add_saliency(x, s, softcap, seen);
	return x;
}

Choice choose_score_slots(const Caps& c, uint32_t head_dim, uint32_t share, uint32_t n_rows, uint32_t page, Saliency s,
                          bool softcap) {
	Choice x{Kernel::score_slots, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, head_dim}}};
	if (reads_texels(c)) x = {build_of(Kernel::score_slots, need::texels), texel_score(head_dim, share, n_rows)};
	x.spec.push_back({SPEC_PAGE, page});
	add_saliency(x, s, softcap);
	return x;
}

ScoreChoice choose_score_latent(const Caps& c, uint32_t rank, uint32_t rope_dim, bool softcap, bool seen) {
	ScoreChoice x{
	    {Kernel::score_prompt_latent, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, rank}, {SPEC_ROPE_DIM, rope_dim}}},
	    lanes(c)};
	add_saliency(x, {}, softcap, seen);
	return x;
}

Choice choose_score_latent_slots(const Caps& c, uint32_t rank, uint32_t rope_dim, uint32_t page, bool softcap) {
	Choice x{Kernel::score_slots_latent,
	         {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, rank}, {SPEC_ROPE_DIM, rope_dim}, {SPEC_PAGE, page}}};
	add_saliency(x, {}, softcap);
	return x;
}

Choice choose_channel_max(const Caps& c) { return {Kernel::channel_max, {{SPEC_LOCAL_X, wide_local(c)}}}; }
Choice choose_kv_balance(const Caps& c) { return {Kernel::kv_balance, {{SPEC_LOCAL_X, wide_local(c)}}}; }

// ---- fetching

Choice choose_weigh(const Caps& c, const Quant& k, uint32_t head_dim, uint32_t share, uint32_t page, uint32_t flags) {
	const Format keys{k, {}};
	AttendCut cut = attend_cut(c, share, keys, head_dim, page, /*prompt=*/false); // weigh needs no more
	AttendCut wide = cut; // but each of its lanes has 4 tokens, so that its tiles are longer
	wide.quad_lanes = 1;
	if (shared_bytes(c, wide, keys, head_dim, page) > c.shared_bytes) cut.local /= cut.quad_lanes;
	const uint32_t dots = dot_flags(c, keys);
	return {build_of(Kernel::weigh, texels_of(c) | (dots ? need::int8 : 0)),
	        {{SPEC_LOCAL_X, cut.local},
	         {SPEC_HEAD_DIM, head_dim},
	         {SPEC_K_BITS, k.bits},
	         {SPEC_K_GROUP, run_of(k, head_dim)},
	         {SPEC_FLAGS, attend_flags(keys) | dots | flags},
	         {SPEC_PAGE, page},
	         {SPEC_HEADS, cut.heads}}};
}
// For kernels with one workgroup per list.
static uint32_t list_local(const Caps& c) {
	return c.is_cpu ? c.subgroup : std::min(1024u, std::bit_floor(c.workgroup));
}
Choice choose_top_k(const Caps& c) { return {Kernel::top_k, {{SPEC_LOCAL_X, list_local(c)}}}; }
Choice choose_block_max() { return {Kernel::block_max, {{SPEC_LOCAL_X, kLocal}}}; }
Choice choose_candidates(const Caps& c) { return {Kernel::candidates, {{SPEC_LOCAL_X, list_local(c)}}}; }
Choice choose_scatter(const Caps& c) { return {Kernel::scatter, {{SPEC_LOCAL_X, lanes(c)}}}; }
Choice choose_part_share(const Caps& c) { return {Kernel::part_share, {{SPEC_LOCAL_X, reduce_local(c, 64)}}}; }

// ---- indexers

IndexChoice choose_index_score(const Caps& c, uint32_t dim, uint32_t flags) {
	uint32_t keys = 64, rows = 32; // of a workgroup
	const auto shared_bytes = [&] { return keys * dim * 2 + keys / 4 * (rows + 1) * 16; };
	while (keys > 8 && shared_bytes() > c.shared_bytes) keys /= 2, rows *= 2;
	return {{Kernel::index_score, {{SPEC_HEAD_DIM, dim}, {SPEC_TILE, keys}, {SPEC_FLAGS, flags}}}, rows};
}
Choice choose_index_pick(const Caps& c) { return {Kernel::index_pick, {{SPEC_LOCAL_X, list_local(c)}}}; }
Choice choose_index_live() { return {Kernel::index_live, {{SPEC_LOCAL_X, kLiveLocal}}}; }

// ---- packing

Choice choose_pack_channels(const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {Kernel::kv_pack_channels,
	        {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_PAGE, page}, {SPEC_FLAGS, flags}}};
}
Choice choose_pack_tokens(const Caps& c, const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {Kernel::kv_pack_tokens,
	        {{SPEC_LOCAL_X, lanes(c)},
	         {SPEC_HEAD_DIM, head_dim},
	         {SPEC_K_BITS, q.bits},
	         {SPEC_K_GROUP, q.group},
	         {SPEC_PAGE, page},
	         {SPEC_FLAGS, flags}}};
}
Choice choose_pack_pages(const Quant& q, bool values, uint32_t head_dim, uint32_t page) {
	const uint32_t flags = (values ? PACK_P_VALUES : 0) | (q.mean ? PACK_P_MEANS : 0) | (q.rotate ? PACK_P_ROTATE : 0) |
	                       (q.param_bits == 8 ? PACK_P_BYTES : 0);
	return {Kernel::kv_pack_pages,
	        {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_PAGE, page}, {SPEC_FLAGS, flags}}};
}
Choice choose_pack_runs(const Quant& q, uint32_t head_dim, uint32_t page) {
	return {Kernel::kv_pack_runs,
	        {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_K_GROUP, q.group}, {SPEC_PAGE, page}}};
}
Choice choose_kv_block(const Caps& c, uint32_t k_bits, bool balanced) {
	return {Kernel::kv_block,
	        {{SPEC_LOCAL_X, wide_local(c)},
	         {SPEC_K_BITS, std::max(k_bits, 1u)},
	         {SPEC_FLAGS, balanced ? PACK_K_BALANCE : 0}}};
}

} // namespace kvrun::vk
