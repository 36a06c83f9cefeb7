// matmul.comp and matvec.comp for software drivers, which run a subgroup as one SIMD vector: a lane owns weight rows,
// and values of x reach all lanes by shuffles.
//   out[t][r] (+)= sum_k x[t][k] * w[r][k] + bias[r]
//
// Up to three projections share x: their rows follow each other in the grid. The projections' outputs lie in one
// buffer, and so do their weights, and their biases.
// out (T, d) f32, w rows of shared/weight_row.h, x (T, cols) f32, cols a multiple of 4.
// 0 out | 1 w | 2 x | 3 bias. w and x are texel buffers: software drivers fetch 16 bytes per lane from one many times
// faster than from a storage buffer, and scattered addresses cost no more than neighbouring ones.
// workgroup = one subgroup = SUBGROUP * ROWS rows x COLS tokens; x: row tiles, y: token tiles.
// Requires subgroup shuffle, ROWS even, COLS a power of two. An output's sum runs over k in order, whatever T is.
// FLAGS: MATMUL_*.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_ROWS) const uint ROWS = 2;
layout(constant_id = SPEC_COLS) const uint COLS = 8;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 0;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 8;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) uniform utextureBuffer w;
layout(binding = 2) uniform utextureBuffer x;
layout(binding = 3) readonly buffer Bias { float bias[]; };
#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif

#define WEIGHT_PIECE(i) texelFetch(w, int(i))
#define WEIGHT_BLOCKS
#include "lib/unpack_weights.glsl"
#include "lib/matmul_rows.glsl"

const uint QUADS = COLS >= SUBGROUP ? 1u : SUBGROUP / COLS > 8u ? 8u : SUBGROUP / COLS; // quads of k in one fetch of x
const uint FETCHES = COLS > SUBGROUP ? COLS / SUBGROUP : 1u;         // fetches of x for QUADS quads

// Projection and row of this lane's r-th row.
uvec2 lane_slot(uint r) {
	const uint lane = gl_SubgroupInvocationID;
	if (EPILOGUE == MATMUL_SWIGLU)
		return matmul_slot(2u * ((gl_WorkGroupID.x * (ROWS / 2u) + r / 2u) * SUBGROUP + lane) + r % 2u);
	return matmul_slot((gl_WorkGroupID.x * ROWS + r) * SUBGROUP + lane);
}

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint lane = gl_SubgroupInvocationID, t0 = gl_WorkGroupID.y * COLS;
	const uint row_pieces = weight_row_pieces(WEIGHT, p.cols), x_pieces = p.cols / 4u;
	uint row[ROWS]; // first piece
	[[unroll]] for (uint r = 0; r < ROWS; ++r) row[r] = KV_AT(1) / 4u + matmul_row_at(lane_slot(r), row_pieces);
	// Lane l fetches quad l / COLS of token l % COLS, or, with COLS >= SUBGROUP, of tokens l, l + SUBGROUP, ...
	const uint quad = COLS >= SUBGROUP ? 0u : lane / COLS % QUADS;
	uint from[FETCHES];
	[[unroll]] for (uint f = 0; f < FETCHES; ++f)
		from[f] = KV_AT(2) / 4u + tile_x(t0, COLS >= SUBGROUP ? f * SUBGROUP + lane : lane % COLS) * x_pieces + quad;
	float acc[ROWS * COLS];
	[[unroll]] for (uint i = 0; i < ROWS * COLS; ++i) acc[i] = 0.0;

	const uint blocks = (p.cols + 31u) / 32u;
	const uint codes = weight_high_at(WEIGHT, p.cols), chunk_codes = weight_high_at(WEIGHT, 256u);
	uint touched = 0;
	for (uint chunk = 0; chunk * 8u < blocks; ++chunk) {
		// With few tokens memory is the limit. Reading a word of every cache line first lets many misses overlap, which
		// the long arithmetic below would prevent.
		if (COLS <= 2u) for (uint i = chunk * chunk_codes; i < min((chunk + 1u) * chunk_codes, codes); i += 4u)
			[[unroll]] for (uint r = 0; r < ROWS; ++r) touched |= WEIGHT_PIECE(row[r] + i).x;
		WeightScales scales[ROWS];
		if (!WEIGHT_PLAIN) [[unroll]] for (uint r = 0; r < ROWS; ++r) scales[r] = weight_scales(row[r], chunk, p.cols);
		const uint n = min(8u, blocks - chunk * 8u);
		for (uint i = 0; i < n; ++i) {
			const uint b = chunk * 8u + i;
			WeightUnit unit[ROWS * 2];
			vec4 scale[ROWS];
			[[unroll]] for (uint r = 0; r < ROWS; ++r) {
				weight_block(row[r], b, p.cols, unit[2 * r], unit[2 * r + 1]);
				if (!WEIGHT_PLAIN) scale[r] = weight_block_scale(scales[r], i, unit[2 * r], unit[2 * r + 1]);
			}
			vec4 fetched[FETCHES];
			[[unroll]] for (uint j = 0; j < 8; ++j) {
				if (j % QUADS == 0) [[unroll]] for (uint f = 0; f < FETCHES; ++f) {
					fetched[f] = uintBitsToFloat(texelFetch(x, int(from[f] + b * 8u + j)));
					if (TAIL && b * 8u + j + quad >= x_pieces) fetched[f] = vec4(0.0);
				}
				vec4 v[ROWS];
				[[unroll]] for (uint r = 0; r < ROWS; ++r) {
					v[r] = weight_quad(unit[2 * r + j / 4], j % 4);
					const vec2 s = j < 4 ? scale[r].xy : scale[r].zw;
					if (WEIGHT_MIN) v[r] = fma(v[r], s.xxxx, -s.yyyy);
					else if (!WEIGHT_PLAIN) v[r] *= s.x;
				}
				[[unroll]] for (uint t = 0; t < COLS; ++t) {
					const vec4 u = subgroupShuffle(fetched[t / SUBGROUP], j % QUADS * COLS + t % SUBGROUP);
					[[unroll]] for (uint r = 0; r < ROWS; ++r) {
						float a = acc[r * COLS + t];
						a = fma(v[r].x, u.x, a);
						a = fma(v[r].y, u.y, a);
						a = fma(v[r].z, u.z, a);
						acc[r * COLS + t] = fma(v[r].w, u.w, a);
					}
				}
			}
		}
	}
	if (p.tokens == 0u) acc[0] = float(touched); // never true, but compilers do not know
	const uint each = EPILOGUE == MATMUL_SWIGLU ? 2u : 1u;
	[[unroll]] for (uint r = 0; r < ROWS; r += each) {
		const uvec2 s = lane_slot(r), to = matmul_out(s);
		const float add = matmul_bias(s), up_add = each == 2u ? matmul_bias(uvec2(1, s.y)) : 0.0;
		[[unroll]] for (uint t = 0; t < COLS; ++t)
			if (s.x < 3u && tile_has(t0, t))
				matmul_store(to.x + tile_out(t0, t) * to.y, acc[r * COLS + t] + add,
				             acc[(r | (each - 1u)) * COLS + t] + up_add);
	}
}
