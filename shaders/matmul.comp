// out[t][r] (+)= sum_k x[t][k] * w[r][k] + bias[r] for many tokens: tiles of w and x are multiplied in shared memory.
//
// Up to three projections share x: their rows follow each other in the grid. The projections' outputs lie in one bound
// range, and so do their weights, and their biases. out (T, d) f32, w rows of shared/weight_row.h, x (T, cols) f32,
// cols a multiple of 4.
// 0 out | 1 w | 2 x | 3 bias.
// workgroup = 64 rows x COLS tokens, COLS 16 or 64; x: row tiles, y: token tiles. 128 invocations, each 8 rows x COLS /
// 16 tokens in registers. Shared memory: 32 k of 64 rows and of COLS tokens, at most 16 KiB. While a tile is
// multiplied, the next one is loaded into registers. An output's sum runs over k in order, whatever T and COLS are:
// same bits.
// FLAGS: MATMUL_*.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x = 128) in;
layout(constant_id = SPEC_COLS) const uint COLS = 64;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 0;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
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
#include "lib/matmul_tile.glsl"

const uint X_QUADS = COLS * K / 4u / LOCAL; // quads of x an invocation carries to shared memory
shared vec4 w_tile[K * ROWS / 4];         // [k][row]
shared vec4 x_tile[K * COLS / 4];         // [k][token]

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint id = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * ROWS, t0 = gl_WorkGroupID.y * COLS;
	const uint x_quads = p.cols / 4u, steps = (p.cols + K - 1u) / K;
	// What this invocation loads: unit `half_k` of row m, and every LOCAL / COLS-th quad of token n.
	const uint m = id % ROWS, half_k = id / ROWS, n = id % COLS, q0 = id / COLS;
	const uint row = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + m), weight_row_pieces(WEIGHT, p.cols));
	const uint x_row = KV_AT(2) / 4u + tile_x(t0, n) * x_quads;
	WeightUnit unit = weight_unit(row, half_k, p.cols);
	vec2 scale = weight_unit_scale(row, half_k, p.cols);
	vec4 xs[X_QUADS];
	[[unroll]] for (uint i = 0; i < X_QUADS; ++i) {
		const uint quad = q0 + i * (LOCAL / COLS);
		xs[i] = !TAIL || quad < x_quads ? x[x_row + quad] : vec4(0.0);
	}
	const uint a = id % 8u, b = id / 8u; // as in lib/matmul_tile.glsl
	[[unroll]] for (uint i = 0; i < 2 * TILE_T; ++i) acc[i] = vec4(0.0);

	for (uint step = 0; step < steps; ++step) {
		[[unroll]] for (uint i = 0; i < 4; ++i) {
			vec4 v = weight_quad(unit, i);
			if (!WEIGHT_PLAIN) v = fma(v, vec4(scale.x), vec4(-scale.y));
			[[unroll]] for (uint c = 0; c < 4; ++c)
				w_tile[(half_k * 16u + 4u * i + c) * (ROWS / 4u) + m / 4u][m % 4u] = v[c];
		}
		[[unroll]] for (uint i = 0; i < X_QUADS; ++i) {
			const uint quad = q0 + i * (LOCAL / COLS);
			[[unroll]] for (uint c = 0; c < 4; ++c) x_tile[(4u * quad + c) * (COLS / 4u) + n / 4u][n % 4u] = xs[i][c];
		}
		barrier();
		if (step + 1u < steps) {
			unit = weight_unit(row, 2u * (step + 1u) + half_k, p.cols);
			scale = weight_unit_scale(row, 2u * (step + 1u) + half_k, p.cols);
			[[unroll]] for (uint i = 0; i < X_QUADS; ++i) {
				const uint quad = (step + 1u) * (K / 4u) + q0 + i * (LOCAL / COLS);
				xs[i] = !TAIL || quad < x_quads ? x[x_row + quad] : vec4(0.0);
			}
		}
		for (uint k = 0; k < K; ++k) {
			const vec4 wa = w_tile[k * (ROWS / 4u) + a], wb = w_tile[k * (ROWS / 4u) + 8u + a];
			const vec4 quad = x_tile[k * (COLS / 4u) + (TILE_T == 4u ? b : b / 4u)];
			[[unroll]] for (uint t = 0; t < TILE_T; ++t) {
				const float v = TILE_T == 4u ? quad[t] : quad[b % 4u];
				acc[2 * t] = fma(wa, vec4(v), acc[2 * t]);
				acc[2 * t + 1] = fma(wb, vec4(v), acc[2 * t + 1]);
			}
		}
		barrier();
	}
	matmul_store_tile(first, t0, a, b);
}
