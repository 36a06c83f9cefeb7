// matmul.comp on devices with cooperative matrices: products of f16 tiles, sums in f32.
//
// out (T, d) f32, w rows of shared/weight_row.h, x (T, cols) f32, cols a multiple of 4; projections, epilogues and
// bindings as in matmul.comp. Weights and x are rounded to f16 (x beyond 65504 to 65504); a product of two halves and
// its sum are f32. An output's sum runs over k in order, whatever T and the tile are: same bits.
// workgroup = LOCAL_X / 2 rows x COLS tokens; LOCAL_X 64, 128 or 256. Its subgroups form a grid with SUBGROUP_ROWS
// rows; each subgroup computes ROW_TILES x COL_TILES matrices of M rows x N tokens. Shared memory: 32 k of the rows and
// of the tokens as halves, each row padded by 8 halves, BUFFERS times, and M x N floats per subgroup for the epilogue.
// A step has two barriers with 1 buffer, one with 2.
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
layout(constant_id = SPEC_BUFFERS) const uint BUFFERS = 1;
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) restrict readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) restrict readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) restrict readonly buffer W1 { uint w1[]; };
layout(binding = 2) restrict readonly buffer X { vec4 x[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };

#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif
#define WEIGHT_PIECE(i) w4[i]
#define WEIGHT_PAIR(i) w2[i]
#define WEIGHT_WORD(i) w1[i]
#include "lib/unpack_weights.glsl"
#include "lib/matmul_rows.glsl"

const uint ROWS = LOCAL_X / 2u, STEP = 32; // elements of k at a time
const uint STRIDE = (STEP + 8u) / 4u;      // uvec2 from one row of a tile to the next
const uint SUBGROUPS = LOCAL_X / SUBGROUP, SUBGROUP_COLS = SUBGROUPS / SUBGROUP_ROWS;
const uint ROW_TILES = ROWS / SUBGROUP_ROWS / M, COL_TILES = COLS / SUBGROUP_COLS / N;
const uint X_QUADS = COLS * STEP / 4u / LOCAL_X; // quads of x that an invocation carries to shared memory
shared uvec2 w_tile[BUFFERS * ROWS * STRIDE];    // [row][quad of k]
shared uvec2 x_tile[BUFFERS * COLS * STRIDE];    // [token][quad of k]
shared float sums[SUBGROUPS * M * N];            // [subgroup][token][row]

uvec2 halves(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint id = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * ROWS, t0 = gl_WorkGroupID.y * COLS;
	const uint x_quads = p.cols / 4u, steps = (p.cols + STEP - 1u) / STEP;
	// What this invocation loads: unit `half_k` of row m, and every LOCAL_X / COLS-th quad of token n.
	const uint m = id % ROWS, half_k = id / ROWS, n = id % COLS, q0 = id / COLS;
	const uint row = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + m), weight_row_pieces(WEIGHT, p.cols));
	const uint x_row = KV_AT(2) / 4u + tile_x(t0, n) * x_quads;
	WeightUnit unit = weight_unit(row, half_k, p.cols);
	vec2 scale = weight_unit_scale(row, half_k, p.cols);
	vec4 xs[X_QUADS];
	[[unroll]] for (uint i = 0; i < X_QUADS; ++i) {
		const uint quad = q0 + i * (LOCAL_X / COLS);
		xs[i] = !TAIL || quad < x_quads ? x[x_row + quad] : vec4(0.0);
	}
	// What its subgroup computes: the workgroup's rows row0 .. and tokens col0 ..
	const uint row0 = gl_SubgroupID % SUBGROUP_ROWS * (ROW_TILES * M);
	const uint col0 = gl_SubgroupID / SUBGROUP_ROWS * (COL_TILES * N);
	fcoopmatNV<32, gl_ScopeSubgroup, M, N> acc[ROW_TILES * COL_TILES];
	[[unroll]] for (uint i = 0; i < ROW_TILES * COL_TILES; ++i) acc[i] = fcoopmatNV<32, gl_ScopeSubgroup, M, N>(0.0);

	for (uint step = 0; step < steps; ++step) {
		// With two buffers, this step writes one while slower subgroups still multiply the other.
		const uint buf = step % BUFFERS, w0 = buf * (ROWS * STRIDE), x0 = buf * (COLS * STRIDE);
		[[unroll]] for (uint i = 0; i < 4; ++i) {
			vec4 v = weight_quad(unit, i);
			if (!WEIGHT_PLAIN) v = fma(v, vec4(scale.x), vec4(-scale.y));
			w_tile[w0 + m * STRIDE + half_k * 4u + i] = halves(v);
		}
		[[unroll]] for (uint i = 0; i < X_QUADS; ++i)
			x_tile[x0 + n * STRIDE + q0 + i * (LOCAL_X / COLS)] = halves(clamp(xs[i], vec4(-65504.0), vec4(65504.0)));
		barrier();
		if (step + 1u < steps) {
			unit = weight_unit(row, 2u * (step + 1u) + half_k, p.cols);
			scale = weight_unit_scale(row, 2u * (step + 1u) + half_k, p.cols);
			[[unroll]] for (uint i = 0; i < X_QUADS; ++i) {
				const uint quad = (step + 1u) * (STEP / 4u) + q0 + i * (LOCAL_X / COLS);
				xs[i] = !TAIL || quad < x_quads ? x[x_row + quad] : vec4(0.0);
			}
		}
		[[unroll]] for (uint k = 0; k < STEP; k += K) {
			fcoopmatNV<16, gl_ScopeSubgroup, M, K> w[ROW_TILES];
			[[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
				coopMatLoadNV(w[r], w_tile, w0 + (row0 + r * M) * STRIDE + k / 4u, STRIDE, false);
			[[unroll]] for (uint c = 0; c < COL_TILES; ++c) {
				fcoopmatNV<16, gl_ScopeSubgroup, K, N> xt;
				coopMatLoadNV(xt, x_tile, x0 + (col0 + c * N) * STRIDE + k / 4u, STRIDE, true);
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
