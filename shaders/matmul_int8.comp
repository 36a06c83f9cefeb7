// What matmul.comp computes, by integer dot products: x was rounded to int8 (round_rows.comp); weights are codes of 4
// to 8 bits. For devices without cooperative matrices.
//
//   sum_k x_k w_k = sum_blocks unit (scale sum_k b_k code_k - min sum_k b_k)    over blocks of 32 elements
//
// 0 out | 1 w | 2 codes of x | 3 bias | 4 units of x; arguments as for matmul.comp, cols a multiple of 32.
// workgroup = 64 rows x COLS tokens, COLS 16 or 64; x: row tiles, y: token tiles. 128 invocations, each 8 rows x COLS /
// 16 tokens. Shared memory: a block of 64 rows and of COLS tokens with their scales, at most 5120 bytes; meanwhile the
// next block is loaded. An output's sum runs over blocks in order, whatever T and COLS are: same bits.
// FLAGS: MATMUL_*.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x = 128) in;
layout(constant_id = SPEC_COLS) const uint COLS = 64;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 8;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) restrict readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) restrict readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) restrict readonly buffer W1 { uint w1[]; };
layout(binding = 2) restrict readonly buffer X4 { uvec4 x4[]; };
layout(binding = 2) restrict readonly buffer X1 { uint x1[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };
layout(binding = 4) restrict readonly buffer Units { vec2 units[]; };

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
#include "lib/int8.glsl"

const uint WORDS = K / 4u;                 // words of a block, 4 codes each
const bool BY_HALVES = WEIGHT_BY_HALVES;   // one scale for each half of a block
const bool MINS = WEIGHT_OWN_MIN;          // other types' codes are made signed
const uint X_WORDS = COLS * WORDS / LOCAL; // words of x that an invocation loads: 4 or 1
shared uvec4 w_s[WORDS * ROWS / 4];        // [word][row]
shared uvec4 x_s[WORDS * COLS / 4];        // [word][token]
shared vec4 scale_s[2 * ROWS / 4];         // [scale, min; of the lower half, of the upper][row]
shared vec4 unit_s[2 * COLS / 4];          // [unit, unit * sum of codes][token]

uint signed_codes(WeightUnit unit, uint i) {
	const uint code = weight_code_bytes(unit, i);
	return WEIGHT_ZERO > 0u ? weight_centred(code, WEIGHT_ZERO) : code;
}

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint id = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * ROWS, t0 = gl_WorkGroupID.y * COLS;
	const uint steps = p.cols / K;
	// What this invocation loads: unit `half_k` of row m; X_WORDS words of token n from `word` on; the units of a
	// token.
	const uint m = id % ROWS, half_k = id / ROWS, n = id % COLS, word = id / COLS * X_WORDS;
	const uint row = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + m), weight_row_pieces(WEIGHT, p.cols));
	const uint token = tile_x(t0, n);
	WeightUnit unit;
	vec2 scale, of_x;
	uvec4 xs;
#define FETCH(step)                                                                                                    \
	unit = weight_unit(row, 2u * (step) + half_k, p.cols);                                                             \
	scale = weight_unit_scale(row, 2u * (step) + half_k, p.cols);                                                      \
	if (X_WORDS == 4u) xs = x4[KV_AT(2) / 4u + ((step) * p.tokens + token) * 2u + word / 4u];                          \
	else xs.x = x1[KV_AT(2) + ((step) * p.tokens + token) * WORDS + word];                                             \
	of_x = units[KV_AT(4) / 2u + (step) * p.tokens + token];
	FETCH(0u)
	const uint a = id % 8u, b = id / 8u; // as in lib/matmul_tile.glsl
	[[unroll]] for (uint i = 0; i < 2 * TILE_T; ++i) acc[i] = vec4(0.0);

	for (uint step = 0; step < steps; ++step) {
		[[unroll]] for (uint i = 0; i < 4; ++i)
			w_s[(half_k * 4u + i) * (ROWS / 4u) + m / 4u][m % 4u] = signed_codes(unit, i);
		[[unroll]] for (uint i = 0; i < X_WORDS; ++i) x_s[(word + i) * (COLS / 4u) + n / 4u][n % 4u] = xs[i];
		if (BY_HALVES || half_k == 0u) scale_s[(BY_HALVES ? half_k : 0u) * (ROWS / 4u) + m / 4u][m % 4u] = scale.x;
		if (MINS && half_k == 1u) scale_s[ROWS / 4u + m / 4u][m % 4u] = scale.y;
		if (id < COLS) {
			unit_s[n / 4u][n % 4u] = of_x.x;
			if (MINS) unit_s[COLS / 4u + n / 4u][n % 4u] = of_x.y;
		}
		barrier();
		const uint next = min(step + 1u, steps - 1u);
		FETCH(next)
		const uint at = TILE_T == 4u ? b : b / 4u; // tokens of this invocation among quads
		vec4 unit_t = unit_s[at], sum_t = MINS ? unit_s[COLS / 4u + at] : vec4(0.0);
		if (TILE_T == 1u) unit_t.x = unit_t[b % 4u], sum_t.x = sum_t[b % 4u];
		[[dont_unroll]] for (uint part = 0; part < (BY_HALVES ? 2u : 1u); ++part) { // unrolled, RDNA 3 would spill
			ivec4 sum[2 * TILE_T];
			[[unroll]] for (uint i = 0; i < 2 * TILE_T; ++i) sum[i] = ivec4(0);
			[[unroll]] for (uint i = 0; i < WORDS / (BY_HALVES ? 2u : 1u); ++i) {
				const uint k = part * (WORDS / 2u) + i;
				const ivec4 wa = ivec4(w_s[k * (ROWS / 4u) + a]), wb = ivec4(w_s[k * (ROWS / 4u) + 8u + a]);
				ivec4 xk = ivec4(x_s[k * (COLS / 4u) + at]);
				if (TILE_T == 1u) xk.x = xk[b % 4u];
				[[unroll]] for (uint t = 0; t < TILE_T; ++t)
					[[unroll]] for (uint c = 0; c < 4; ++c) {
						sum[2 * t][c] += dot_bytes(wa[c], xk[t], 0);
						sum[2 * t + 1][c] += dot_bytes(wb[c], xk[t], 0);
					}
			}
			const vec4 sa = scale_s[part * (ROWS / 4u) + a], sb = scale_s[part * (ROWS / 4u) + 8u + a];
			[[unroll]] for (uint t = 0; t < TILE_T; ++t) {
				acc[2 * t] = fma(vec4(sum[2 * t]) * sa, vec4(unit_t[t]), acc[2 * t]);
				acc[2 * t + 1] = fma(vec4(sum[2 * t + 1]) * sb, vec4(unit_t[t]), acc[2 * t + 1]);
			}
		}
		if (MINS) {
			const vec4 ma = scale_s[ROWS / 4u + a], mb = scale_s[ROWS / 4u + 8u + a];
			[[unroll]] for (uint t = 0; t < TILE_T; ++t) {
				acc[2 * t] = fma(ma, vec4(-sum_t[t]), acc[2 * t]);
				acc[2 * t + 1] = fma(mb, vec4(-sum_t[t]), acc[2 * t + 1]);
			}
		}
		barrier();
	}
	matmul_store_tile(first, t0, a, b);
}
