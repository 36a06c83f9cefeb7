// matmul.comp on devices with cooperative matrices: products of f16 tiles, sums in f32.
//
// out (T, d) f32, w rows of shared/weight_row.h, x (T, pieces, 8) f16 of halve_rows.comp, zeros behind column cols;
// projections, epilogues and bindings else as in matmul.comp. Weights are rounded to f16, too; a product of two halves
// and its sum are f32. An output's sum runs over k in order, whatever T and the tile are: same bits.
// workgroup = LOCAL_X / 2 rows x COLS tokens; LOCAL_X 64, 128 or 256. Its subgroups form a grid with SUBGROUP_ROWS
// rows; each subgroup computes ROW_TILES x COL_TILES matrices of M rows x N tokens. Shared memory: STEP elements (32 or
// 64) of the rows and of the tokens as halves, each row padded by 8 halves, BUFFERS times, and M x N floats per
// subgroup for the epilogue. A step has two barriers with 1 buffer, one with 2.
// Neighbouring invocations load neighbouring memory. On an H200, where every invocation of a subgroup loaded from a row
// of its own, a load took as many cycles as there are rows, and products waited for loads half of the time.
// M, N, K: a shape that the device has for f16 x f16 + f32. The build converts this GLSL of NV_cooperative_matrix to
// SPIR-V of KHR_cooperative_matrix (khr_matrix.cpp).
// FLAGS: MATMUL_*.
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_COLS) const uint COLS = 64;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 0;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_SUBGROUP_ROWS) const uint SUBGROUP_ROWS = 2;
layout(constant_id = SPEC_STEP) const uint STEP = 32;
layout(constant_id = SPEC_BUFFERS) const uint BUFFERS = 1;
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) restrict readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) restrict readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) restrict readonly buffer W1 { uint w1[]; };
layout(binding = 2) restrict readonly buffer X { uvec4 x[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };

#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif
#define WEIGHT_PIECE(i) w4[i]
#define WEIGHT_PAIR(i) w2[i]
#define WEIGHT_WORD(i) w1[i]
#define WEIGHT_BLOCKS
#include "lib/unpack_weights.glsl"
#include "lib/halves.glsl"
#include "lib/matmul_rows.glsl"

const uint ROWS = LOCAL_X / 2u;
const uint PIECES = STEP / 8u;             // of a row of a tile, 8 halves each
const uint STRIDE = PIECES + 1u;           // from one row to the next
const uint SUBGROUPS = LOCAL_X / SUBGROUP, SUBGROUP_COLS = SUBGROUPS / SUBGROUP_ROWS;
const uint ROW_TILES = ROWS / SUBGROUP_ROWS / M, COL_TILES = COLS / SUBGROUP_COLS / N;
const uint X_TOKENS = LOCAL_X / PIECES;    // tokens whose pieces are loaded together
const uint X_LOADS = (COLS + X_TOKENS - 1u) / X_TOKENS;
const uint UNITS = STEP / 32u;             // of weights that an invocation loads: half a block, or a block
shared uvec4 w_tile[BUFFERS * ROWS * STRIDE]; // [row][piece]
shared uvec4 x_tile[BUFFERS * COLS * STRIDE]; // [token][piece]
shared float sums[SUBGROUPS * M * N];         // [subgroup][token][row]

// What an invocation holds of a row's step until it is needed: decoding waits for memory.
WeightUnit unit[UNITS];
WeightScales block_scales; // UNITS 2
vec2 unit_scale;           // UNITS 1
void load_weights(uint row, uint at, uint blocks) { // unit or block `at`
	if (UNITS == 1u) {
		unit[0] = weight_unit(row, at, p.cols);
		unit_scale = weight_unit_scale(row, at, p.cols);
	} else {
		at = min(at, blocks - 1u);
		weight_block(row, at, p.cols, unit[0], unit[UNITS - 1u]);
		if (!WEIGHT_PLAIN) block_scales = weight_scales(row, at / 8u, p.cols);
	}
}

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint id = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * ROWS, t0 = gl_WorkGroupID.y * COLS;
	const uint steps = (p.cols + STEP - 1u) / STEP, blocks = (p.cols + 31u) / 32u;
	// What this invocation loads: half h of a step of row m, and piece q of every X_TOKENS-th token.
	const uint m = id / 2u, h = id % 2u, n = id / PIECES, q = id % PIECES;
	const uint row = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + m), weight_row_pieces(WEIGHT, p.cols));
	const bool has_x = COLS >= X_TOKENS || n < COLS;
	const uint x_pieces = (p.cols + KV_HALVE_ELEMENTS - 1u) / KV_HALVE_ELEMENTS * (KV_HALVE_ELEMENTS / 8u);
	uint x_at[X_LOADS];
	uvec4 xs[X_LOADS];
	[[unroll]] for (uint i = 0; i < X_LOADS; ++i) {
		x_at[i] = KV_AT(2) / 4u + tile_x(t0, min(n + i * X_TOKENS, COLS - 1u)) * x_pieces + q;
		xs[i] = x[x_at[i]];
	}
	load_weights(row, h, blocks);
	// What its subgroup computes: the workgroup's rows row0 .. and tokens col0 ..
	const uint row0 = gl_SubgroupID % SUBGROUP_ROWS * (ROW_TILES * M);
	const uint col0 = gl_SubgroupID / SUBGROUP_ROWS * (COL_TILES * N);
	fcoopmatNV<32, gl_ScopeSubgroup, M, N> acc[ROW_TILES * COL_TILES];
	[[unroll]] for (uint i = 0; i < ROW_TILES * COL_TILES; ++i) acc[i] = fcoopmatNV<32, gl_ScopeSubgroup, M, N>(0.0);

	for (uint step = 0; step < steps; ++step) {
		// With two buffers, this step writes one while slower subgroups still multiply the other.
		const uint buf = step % BUFFERS, w0 = buf * (ROWS * STRIDE), x0 = buf * (COLS * STRIDE);
		vec4 scales = unit_scale.xyxy; // of both units
		if (UNITS == 2u && !WEIGHT_PLAIN)
			scales = weight_block_scale(block_scales, min(2u * step + h, blocks - 1u) % 8u, unit[0], unit[UNITS - 1u]);
		[[unroll]] for (uint u = 0; u < UNITS; ++u) {
			const vec2 scale = u == 0u ? scales.xy : scales.zw;
			[[unroll]] for (uint i = 0; i < 2; ++i) {
				vec4 low = weight_quad(unit[u], 2u * i), high = weight_quad(unit[u], 2u * i + 1u);
				if (!WEIGHT_PLAIN) {
					low = fma(low, vec4(scale.x), vec4(-scale.y));
					high = fma(high, vec4(scale.x), vec4(-scale.y));
				}
				w_tile[w0 + m * STRIDE + (h * UNITS + u) * 2u + i] = halves8(low, high);
			}
		}
		[[unroll]] for (uint i = 0; i < X_LOADS; ++i)
			if (has_x) x_tile[x0 + (n + i * X_TOKENS) * STRIDE + q] = xs[i];
		barrier();
		if (step + 1u < steps) {
			load_weights(row, 2u * (step + 1u) + h, blocks);
			[[unroll]] for (uint i = 0; i < X_LOADS; ++i) xs[i] = x[x_at[i] + (step + 1u) * PIECES];
		}
		[[unroll]] for (uint k = 0; k < STEP; k += K) {
			fcoopmatNV<16, gl_ScopeSubgroup, M, K> w[ROW_TILES];
			[[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
				coopMatLoadNV(w[r], w_tile, w0 + (row0 + r * M) * STRIDE + k / 8u, STRIDE, false);
			[[unroll]] for (uint c = 0; c < COL_TILES; ++c) {
				fcoopmatNV<16, gl_ScopeSubgroup, K, N> xt;
				coopMatLoadNV(xt, x_tile, x0 + (col0 + c * N) * STRIDE + k / 8u, STRIDE, true);
				[[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
					acc[c * ROW_TILES + r] = coopMatMulAddNV(w[r], xt, acc[c * ROW_TILES + r]);
			}
		}
		if (BUFFERS == 1u) barrier();
	}

	const uint each = EPILOGUE == MATMUL_SWIGLU ? 2u : 1u, own = gl_SubgroupID * M * N;
	[[unroll]] for (uint i = 0; i < ROW_TILES * COL_TILES; ++i) {
		coopMatStoreNV(acc[i], sums, own, M, true);
		barrier();
		for (uint e = gl_SubgroupInvocationID; e < M * N / each; e += SUBGROUP) {
			const uint r = e % (M / each) * each, c = e / (M / each);
			const uint col = col0 + i / ROW_TILES * N + c;
			const uvec2 s = matmul_slot(first + row0 + i % ROW_TILES * M + r);
			if (s.x > 2u || !tile_has(t0, col)) continue;
			const uvec2 to = matmul_out(s);
			const float add = matmul_bias(s), up_add = each == 2u ? matmul_bias(uvec2(1, s.y)) : 0.0;
			const uint at = own + c * M + r;
			matmul_store(to.x + tile_out(t0, col) * to.y, sums[at] + add, sums[at | (each - 1u)] + up_add);
		}
		barrier();
	}
}
