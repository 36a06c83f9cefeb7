// Chooses the kernel and constants of products with weights, dense ones and those of experts.
#include "backends/vulkan/kernel_choice_parts.h"
#include "engine/core/round.h"
#include "shared/push.h"
#include <algorithm>
#include <bit>
#include <optional>

namespace kvrun::vk {

namespace {

constexpr uint32_t kVecLocal = 128;  // workgroup of matvec.comp
constexpr uint32_t kInt8Local = 256; // of matvec_int8.comp, on most devices
// Its most shared memory: 40 bytes for a block, and sums of squares
constexpr uint32_t kInt8Shared = KV_RESIDENT_BLOCKS * 40 + 1024;
constexpr uint32_t kTileRows = 64;       // of matmul.comp, matmul_int8.comp
constexpr uint32_t kLeastGroups = 65535; // of a grid: every device allows them

// 4 rows per lane share the fetches and shuffles of x; 8 tokens share the unpacking of weights. Measured best on
// lavapipe.
MatmulChoice texel_matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	const uint32_t cols = std::min(std::bit_ceil(tokens), 8u), each = 4;
	return {{build_of(Kernel::matmul, need::texels | grid_of(type)),
	         {{SPEC_LOCAL_X, c.subgroup},
	          {SPEC_ROWS, each},
	          {SPEC_COLS, cols},
	          {SPEC_WTYPE, uint32_t(type)},
	          {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, each * c.subgroup), ceil_div(tokens, cols), 1}};
}

// Rows of a subgroup as measured, for decode rows by themselves; else by the rule. An output's bits do not depend on
// it.
uint32_t own_rows(const Caps& c, uint32_t tokens, uint32_t rule) {
	return tokens == 1 && c.knobs[Knob::MatvecRows] ? c.knobs[Knob::MatvecRows] : rule;
}
// `each` rows of a subgroup, or more where the device does not allow so many workgroups: with one subgroup of 128
// lanes, 262144 rows of a vocabulary are 65536.
uint32_t rows_in_grid(const Caps& c, uint32_t rows, uint32_t subgroups, uint32_t each) {
	while (ceil_div(rows, subgroups * each) > std::max(c.groups[0], kLeastGroups)) each *= 2;
	return each;
}

// A group of lanes takes more rows if there are still enough groups to fill the device: x is read less often.
MatmulChoice matvec(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	uint32_t each = own_rows(c, tokens, rows >= 8192 ? 4 : rows >= 1024 ? 2 : 1);
	if (tokens > 1)
		each = few_registers(c) && tokens > 4 ? 1 : c.vendor == kIntel || (type == DType::F32 && tokens > 4) ? 2 : 4;
	if ((flags & MATMUL_EPILOGUE) == MATMUL_SWIGLU) each = std::max(each, 2u);
	const uint32_t n = c.subgroup_ops ? std::min(c.subgroup, kVecLocal) : 32;
	each = rows_in_grid(c, rows, kVecLocal / n, each);
	return {{build_of(Kernel::matvec, grid_of(type)),
	         {{SPEC_LOCAL_X, kVecLocal},
	          {SPEC_SUBGROUP, c.subgroup},
	          {SPEC_ROWS, each},
	          {SPEC_COLS, tokens},
	          {SPEC_WTYPE, uint32_t(type)},
	          {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, kVecLocal / n * each), 1, 1}};
}

// Lanes that share a row in matvec_int8.comp: the same for every number of rows and tokens, because sums depend on it.
uint32_t int8_lanes(const Caps& c) { return few_registers(c) && c.subgroup_pin ? c.subgroup_min : c.subgroup; }

// Workgroup of matvec_int8.comp that rounds x itself, and of round_vec.comp. Sums of squares depend on it.
uint32_t int8_local(const Caps& c) { return c.vendor == kNvidia && c.workgroup >= 512 ? 512 : kInt8Local; }

// Rounding x takes 100 vector instructions of each subgroup for 4096 columns, and multiplying a Q4_K row 243 (gfx1100,
// tools/results/matvec_instructions.csv).
//
// One token: a workgroup rounds x itself, and workgroups take more rows if there are enough to fill the device. A
// dispatch of round_vec.comp before it takes 5.5 us on an H200, and multiplying then saves less: 8 layers of an 8B
// model in Q4_K take 0.64 ms per token, 0.53 + 0.18 with that dispatch. Workgroups of 512 lanes that loop over rows
// (MATMUL_RESIDENT) take 0.59; of 256 lanes 0.75. A 7900 XTX would hide rounding behind memory [E].
//
// More tokens: each workgroup would round all rows, a few blocks at a time between barriers. The same layers take
// 1.34, 2.99 and 8.01 ms for 4, 8 and 16 tokens on an H200, with round_vec.comp 0.81 + 0.18, 1.19 + 0.18 and
// 2.09 + 0.18.
// On gfx1100 a subgroup takes 13182 instead of 33646 cycles with 8 tokens (Q4_K, compiler's estimate).
bool resides(const Caps& c, uint32_t cols) {
	return c.vendor == kNvidia && c.cores && ceil_div(cols, 32u) <= KV_RESIDENT_BLOCKS;
}

// cols: columns of dense weights, 0: of experts.
MatmulChoice matvec_int8(const Caps& c, DType type, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t flags) {
	const bool wide = rows >= 16384 && c.vendor == kAmd && tokens <= kMatvecTokens; // else 4 need too many registers
	uint32_t each = own_rows(c, tokens, wide ? 4 : rows >= 6144 ? 2 : 1), local = int8_local(c), most = UINT32_MAX;
	if (rounds_first(c, tokens)) {
		flags |= MATMUL_ROUNDED;
		local = kVecLocal; // 16 tokens need many registers
		if (c.vendor == kNvidia) each = 2;
	} else if (cols && resides(c, cols)) {
		flags |= MATMUL_RESIDENT;
		most = c.cores * 2;
	}
	if ((flags & MATMUL_EPILOGUE) == MATMUL_SWIGLU) each = std::max(each, 2u);
	if (most == UINT32_MAX) each = rows_in_grid(c, rows, local / int8_lanes(c), each);
	return {{build_of(Kernel::matvec, need::int8 | grid_of(type)),
	         {{SPEC_LOCAL_X, local},
	          {SPEC_SUBGROUP, int8_lanes(c)},
	          {SPEC_ROWS, each},
	          {SPEC_COLS, int8_cols(tokens)},
	          {SPEC_WTYPE, uint32_t(type)},
	          {SPEC_FLAGS, flags}}},
	        {std::min(most, ceil_div(rows, local / int8_lanes(c) * each)), 1, 1}};
}

constexpr uint32_t kWideCols = 64, kNarrowCols = 16; // tokens of a workgroup of matmul.comp, matmul_int8.comp

MatmulChoice matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags, uint32_t cols) {
	return {{build_of(Kernel::matmul, (multiplies_in_int8(c, type) ? need::int8 : 0) | grid_of(type)),
	         {{SPEC_COLS, cols}, {SPEC_WTYPE, uint32_t(type)}, {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, kTileRows), ceil_div(tokens, cols), 1}};
}

// Wide tiles do more work per byte from memory; narrow tiles give more workgroups.
MatmulChoice matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	const uint32_t fill = c.knobs[Knob::TileFill]; // workgroups that keep a device busy
	const bool big = tokens > kNarrowCols && uint64_t(ceil_div(rows, kTileRows)) * ceil_div(tokens, kWideCols) >= fill;
	return matmul(c, type, rows, tokens, flags, big ? kWideCols : kNarrowCols);
}

struct MatrixTile { // tile of a workgroup of matmul_matrix.comp
	uint32_t local, cols;
	uint32_t rows() const { return local / 2; }
};
// By registers. The short one has as many tokens as the middle one for half as many rows, so that prompts of few tokens
// fill a device, too, and weights are still unpacked once.
constexpr MatrixTile kBigTile{256, 128}, kTile{128, 64}, kShortTile{64, 64}, kIntelTile{128, 32}, kNarrowTile{128, 16};

// The number of rows in the grid of a workgroup's subgroups, chosen so that each subgroup has whole matrices and loads
// as little as possible of both operands; 0: impossible.
uint32_t subgroup_rows(const Caps& c, MatrixTile tile) {
	const uint32_t subgroups = tile.local / c.subgroup;
	uint32_t best = 0, least = UINT32_MAX;
	for (uint32_t n = 1; n <= subgroups; n *= 2) {
		const uint32_t own_rows = tile.rows() / n, own_cols = tile.cols * n / subgroups;
		if (own_rows < c.matrix.m || own_cols < c.matrix.n || own_rows + own_cols >= least) continue;
		best = n, least = own_rows + own_cols;
	}
	return best;
}

constexpr uint32_t kStep = 32, kWideStep = 64; // elements of a row in a tile

bool tile_fits(const Caps& c, MatrixTile tile, uint32_t buffers = 1, uint32_t step = kStep) {
	const uint32_t row_bytes = (step + 8) * 2; // in shared memory, with padding
	const uint32_t sums = tile.local / c.subgroup * c.matrix.m * c.matrix.n * 4;
	return tile.local <= c.workgroup && buffers * (tile.rows() + tile.cols) * row_bytes + sums <= c.shared_bytes &&
	       subgroup_rows(c, tile) > 0;
}

MatmulChoice matrix_matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags, MatrixTile tile) {
	const uint32_t buffers = c.knobs[Knob::TileBuffers] > 1 && tile_fits(c, tile, 2) ? 2 : 1;
	// Wide steps have half as many barriers, and load whole blocks of weights. Measured on NVIDIA only.
	const bool wide = c.vendor == kNvidia && tile_fits(c, tile, buffers, kWideStep);
	MatmulChoice x{{build_of(Kernel::matmul, need::matrices | grid_of(type)),
	                {{SPEC_LOCAL_X, tile.local},
	                 {SPEC_COLS, tile.cols},
	                 {SPEC_WTYPE, uint32_t(type)},
	                 {SPEC_FLAGS, flags},
	                 {SPEC_SUBGROUP_ROWS, subgroup_rows(c, tile)},
	                 {SPEC_STEP, wide ? kWideStep : kStep}}},
	               {ceil_div(rows, tile.rows()), ceil_div(tokens, tile.cols), 1}};
	add_matrices(x.spec, c);
	if (buffers > 1) x.spec.push_back({SPEC_BUFFERS, buffers});
	return x;
}

// The largest tile of which there are enough workgroups.
std::optional<MatmulChoice> matrix_matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	if (!uses_matrices(c)) return std::nullopt;
	const uint32_t fill = c.knobs[Knob::TileFill]; // workgroups that keep a device busy
	const auto fills = [&](MatrixTile t) {         // without tokens that the next smaller tile would not have
		return tokens > t.cols / 2 && uint64_t(ceil_div(rows, t.rows())) * ceil_div(tokens, t.cols) >= fill;
	};
	return matrix_matmul(c, type, rows, tokens, flags,
	                     tokens <= 16                                ? kNarrowTile
	                     : c.vendor == kIntel                        ? kIntelTile
	                     : fills(kBigTile) && tile_fits(c, kBigTile) ? kBigTile
	                     : fills(kTile) || !tile_fits(c, kShortTile) ? kTile
	                                                                 : kShortTile);
}

} // namespace

// Independent of the number of tokens, so that an output has the same bits with any other rows.
bool projects_in_int8(const Caps& c, DType type) {
	return c.int_dot && c.knobs[Knob::ProjectInt8] && c.subgroup_ops && c.subgroup >= 4 && c.subgroup <= 64 &&
	       !reads_texels(c) && tensor_type_info(type).int8 && c.workgroup >= kInt8Local &&
	       c.shared_bytes >= kInt8Shared;
}

uint32_t matvec_tokens(const Caps& c, DType type) {
	return projects_in_int8(c, type) && c.vendor != kIntel ? kInt8Tokens : kMatvecTokens; // on Intel, 16 rows spill
}

// Cooperative matrices are faster, and round x less.
bool multiplies_in_int8(const Caps& c, DType type) { return projects_in_int8(c, type) && !uses_matrices(c); }

// Independent of the number of tokens, because a row's bits must not depend on other rows. matvec.comp with quantised
// weights is bound by instructions already.
bool fuses_norm(const Caps& c, DType type) {
	return !reads_texels(c) && (projects_in_int8(c, type) || (!is_quantised(type) && !few_registers(c)));
}

// Either all tiles or none, so that an output has the same bits whatever the other tokens are.
bool uses_matrices(const Caps& c) {
	return c.matrix && c.knobs[Knob::Matrices] && !reads_texels(c) && !few_registers(c) && c.subgroup_ops &&
	       c.subgroup <= kVecLocal && tile_fits(c, kTile) && tile_fits(c, kNarrowTile);
}

bool buffers_matrices(const Caps& c) { return uses_matrices(c) && tile_fits(c, kTile, 2); }

MatmulChoice choose_matmul(const Caps& c, DType type, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t epilogue,
                           bool decode, bool norm) {
	const uint32_t flags = epilogue | (cols % 32 ? MATMUL_TAIL : 0);
	if (reads_texels(c)) return texel_matmul(c, type, rows, tokens, flags);
	if (decode && projects_in_int8(c, type))
		return matvec_int8(c, type, rows, cols, tokens, epilogue | (norm ? MATMUL_NORM : 0));
	if (decode) return matvec(c, type, rows, tokens, flags | (norm ? MATMUL_NORM : 0));
	KV_ASSERT(!norm);
	if (const auto by_matrices = matrix_matmul(c, type, rows, tokens, epilogue)) return *by_matrices;
	return matmul(c, type, rows, tokens, flags);
}

RowsOfX rows_of_x(Kernel k) {
	const KernelBlob& b = kernel_blobs()[size_t(k)];
	if (b.of != Kernel::matmul) return RowsOfX::Floats;
	return b.needs & need::matrices ? RowsOfX::Halves : b.needs & need::int8 ? RowsOfX::Bytes : RowsOfX::Floats;
}
Choice choose_halve_rows() { return {Kernel::halve_rows, {{SPEC_LOCAL_X, kHalvePieces}}}; }
bool rounds_first(const Caps& c, uint32_t tokens) { return tokens > (c.vendor == kNvidia ? 1 : 4); }
// Up to 8 rows have a pipeline for each number. Larger numbers share those for 12 and 16, because compiling takes time.
uint32_t int8_cols(uint32_t tokens) { return tokens <= kMatvecTokens ? tokens : align_up(tokens, 4); }
Choice choose_round_vec(const Caps& c, bool norm) {
	return {Kernel::round_vec,
	        {{SPEC_LOCAL_X, int8_local(c)}, {SPEC_SUBGROUP, int8_lanes(c)}, {SPEC_FLAGS, norm ? MATMUL_NORM : 0}}};
}
Choice choose_round_rows() { return {Kernel::round_rows, {{SPEC_LOCAL_X, kRoundBlocks * 4}}}; }

// ---- mixtures of experts

// One lane per expert, up to a workgroup's size.
Choice choose_route(const Caps& c, uint32_t n_experts, uint32_t flags) {
	const uint32_t local = c.is_cpu ? 32 : std::clamp(std::bit_ceil(n_experts), 32u, kLocal);
	return {Kernel::route, {{SPEC_LOCAL_X, local}, {SPEC_FLAGS, flags}}};
}
Choice choose_sort_slots(const Caps&, uint32_t n_experts) {
	return {Kernel::sort_slots, {{SPEC_LOCAL_X, std::clamp(std::bit_ceil(n_experts), 32u, kLocal)}}};
}
Choice choose_expert_sum(const Caps& c) { return {Kernel::expert_sum, {{SPEC_LOCAL_X, c.is_cpu ? 32u : 64u}}}; }

// The kernels are those of matmul, except for their tiles, and give the same bits.
MatmulChoice choose_expert_matmul(const Caps& c, DType type, uint32_t rows, uint32_t cols, uint32_t slots,
                                  uint32_t n_experts, uint32_t epilogue, bool decode) {
	const uint32_t flags = epilogue | (cols % 32 ? MATMUL_TAIL : 0), tiles = expert_tiles(slots, n_experts);
	const uint32_t each = std::min(ceil_div(slots, n_experts), KV_EXPERT_TILE); // about how many slots an expert has
	MatmulChoice m;
	if (reads_texels(c))
		m = texel_matmul(c, type, rows, decode ? 1 : each, flags | (decode ? MATMUL_BY_SLOT : 0));
	else if (decode && projects_in_int8(c, type))
		m = matvec_int8(c, type, rows, 0, 1, epilogue);
	else if (decode)
		m = matvec(c, type, rows, 1, flags);
	else if (uses_matrices(c))
		m = matrix_matmul(c, type, rows, each, epilogue,
		                  each <= 16           ? kNarrowTile
		                  : c.vendor == kIntel ? kIntelTile
		                                       : kTile);
	else
		m = matmul(c, type, rows, each, flags, each > kNarrowCols ? kWideCols : kNarrowCols);
	const KernelBlob& dense = kernel_blobs()[size_t(m.kernel)];
	m.kernel = build_of(dense.of, dense.needs | need::experts);
	m.groups.y = slots;
	if (!decode)
		for (const SpecValue& s : m.spec)
			if (s.id == SPEC_COLS) m.groups.y = tiles * (KV_EXPERT_TILE / s.value);
	return m;
}

} // namespace kvrun::vk
