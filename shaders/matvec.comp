// out[t][r] (+)= sum_k x[t][k] * w[r][k] + bias[r] for few tokens: each weight is read once, and memory is the limit.
//
// Up to three projections share x: their rows follow each other in the grid. The projections' outputs lie in one bound
// range, and so do their weights, and their biases. out (T, d) f32, w rows of shared/weight_row.h, x (T, cols) f32,
// cols a multiple of 4.
// 0 out | 1 w | 2 x | 3 bias | 4 norm. NORM: x / rms(x) * norm (cols) f32 in place of x.
// LANES lanes share ROWS rows: a lane takes units of 16 elements LANES apart, so a row is read in consecutive 16-byte
// pieces (8-bit codes) and x once per ROWS rows. LANES is a subgroup, or 32 lanes and shared memory without them.
// COLS = T <= 8. An output's sum depends on LANES only: not on T, on ROWS or on neighbouring rows.
// FLAGS: MATMUL_*.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#ifndef NO_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 64;
layout(constant_id = SPEC_ROWS) const uint ROWS = 2;
layout(constant_id = SPEC_COLS) const uint COLS = 1;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 0;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) restrict readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) restrict readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) restrict readonly buffer W1 { uint w1[]; };
layout(binding = 2) restrict readonly buffer X { vec4 x[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };
layout(binding = 4) restrict readonly buffer NormWeight { vec4 norm_w[]; };

#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif
#define WEIGHT_PIECE(i) w4[i]
#define WEIGHT_PAIR(i) w2[i]
#define WEIGHT_WORD(i) w1[i]
#include "lib/unpack_weights.glsl"
#include "lib/matmul_rows.glsl"
#include "lib/matvec_rows.glsl"

#ifdef NO_SUBGROUP
const uint LANES = LOCAL_X < 32u ? LOCAL_X : 32u;
shared float sums[LOCAL_X];
#else
const uint LANES = SUBGROUP;
#endif

// Sum over the LANES lanes of this group; valid in every lane.
float lanes_add(float v) {
#ifdef NO_SUBGROUP
	const uint i = gl_LocalInvocationIndex;
	barrier(); // earlier values have been read
	sums[i] = v;
	for (uint n = LANES / 2u; n > 0u; n /= 2u) {
		barrier();
		if (i % LANES < n) sums[i] += sums[i + n];
	}
	barrier();
	return sums[i - i % LANES];
#else
	return subgroupAdd(v);
#endif
}

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
#ifdef NO_SUBGROUP
	const uint lane = gl_LocalInvocationIndex % LANES, group = gl_LocalInvocationIndex / LANES;
#else
	const uint lane = gl_SubgroupInvocationID, group = gl_SubgroupID;
#endif
	const uint first = (gl_WorkGroupID.x * (LOCAL_X / LANES) + group) * ROWS;
	const uint row_pieces = weight_row_pieces(WEIGHT, p.cols), x_quads = p.cols / 4u, x_at = KV_AT(2) / 4u;
	uint row[ROWS]; // first piece
	[[unroll]] for (uint r = 0; r < ROWS; ++r)
		row[r] = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + r), row_pieces);
	float squares[COLS];
	[[unroll]] for (uint i = 0; i < ROWS * COLS; ++i) acc[i] = 0.0;
	[[unroll]] for (uint t = 0; t < COLS; ++t) squares[t] = 0.0;

	const uint units = (p.cols + 15u) / 16u;
	for (uint u = lane; u < units; u += LANES) {
		WeightUnit unit[ROWS];
		vec2 scale[ROWS];
		[[unroll]] for (uint r = 0; r < ROWS; ++r) {
			unit[r] = weight_unit(row[r], u, p.cols);
			scale[r] = weight_unit_scale(row[r], u, p.cols);
		}
		float part[ROWS * COLS], x_sum[COLS];
		[[unroll]] for (uint i = 0; i < ROWS * COLS; ++i) part[i] = 0.0;
		[[unroll]] for (uint t = 0; t < COLS; ++t) x_sum[t] = 0.0;
		[[unroll]] for (uint i = 0; i < 4; ++i) {
			vec4 v[ROWS];
			[[unroll]] for (uint r = 0; r < ROWS; ++r) v[r] = weight_quad(unit[r], i);
			const uint quad = 4u * u + i;
			[[unroll]] for (uint t = 0; t < COLS; ++t) {
				vec4 q = vec4(0.0);
				if (!TAIL || quad < x_quads) {
					q = x[x_at + vec_x(t) * x_quads + quad];
					if (NORM) {
						squares[t] += dot(q, q);
						q *= norm_w[KV_AT(4) / 4u + quad];
					}
				}
				if (WEIGHT_MIN) x_sum[t] += (q.x + q.y) + (q.z + q.w);
				[[unroll]] for (uint r = 0; r < ROWS; ++r) {
					float a = part[r * COLS + t];
					a = fma(v[r].x, q.x, a);
					a = fma(v[r].y, q.y, a);
					a = fma(v[r].z, q.z, a);
					part[r * COLS + t] = fma(v[r].w, q.w, a);
				}
			}
		}
		[[unroll]] for (uint r = 0; r < ROWS; ++r) [[unroll]] for (uint t = 0; t < COLS; ++t) {
			precise float a = fma(scale[r].x, part[r * COLS + t], acc[r * COLS + t]);
			if (WEIGHT_MIN) a = fma(-scale[r].y, x_sum[t], a);
			acc[r * COLS + t] = a;
		}
	}
	[[unroll]] for (uint i = 0; i < ROWS * COLS; ++i) acc[i] = lanes_add(acc[i]);
	if (NORM)
		[[unroll]] for (uint t = 0; t < COLS; ++t) {
			const float scale = 1.0 / sqrt(lanes_add(squares[t]) / float(p.cols) + p.eps);
			[[unroll]] for (uint r = 0; r < ROWS; ++r) acc[r * COLS + t] *= scale;
		}
	if (lane == 0) matvec_store(first);
}
