// x, or x * norm, rounded to int8 in blocks of 32: input of matvec_int8.comp with MATMUL_ROUNDED. The order of the sum
// of squares is that of matvec_int8.comp with the same LOCAL_X and SUBGROUP.
//
//   binding  name   shape
//   0        codes  (tiles, COLS, 2, 32) of 16 bytes, written: a half of a block; tiles = cols / 1024, rounded up
//   1        units  (tiles, COLS, 32) uvec2, written: unit, sums of the halves' codes; then with MATMUL_NORM
//                    (COLS) of 16 bytes: 1 / rms(x)
//   2        x      (T, cols) f32, cols a multiple of 32
//   3        norm   (cols) f32, with MATMUL_NORM
// Grid: y = COLS, rows from T on repeat the last one.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 256;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { RoundVecPush p; };

layout(binding = 0) restrict writeonly buffer Codes { uint codes[]; };
layout(binding = 1) restrict writeonly buffer Units { uvec2 units[]; };
layout(binding = 2) restrict readonly buffer X { vec4 x[]; };
layout(binding = 3) restrict readonly buffer NormWeight { vec4 norm_w[]; };
#include "lib/round_block.glsl"

const bool NORM = (FLAGS & MATMUL_NORM) != 0u;
shared float squares_s[LOCAL_X / SUBGROUP];

void main() {
	const uint j = gl_LocalInvocationIndex % BLOCK_LANES, t = gl_WorkGroupID.y, n_t = p.cols;
	const uint tiles = (p.blocks + 31u) / 32u, x_at = KV_AT(2) / 4u + min(t, p.rows - 1u) * p.blocks * 8u;
	float squares = 0.0;
	for (uint b = gl_LocalInvocationIndex / BLOCK_LANES; b < tiles * 32u; b += LOCAL_X / BLOCK_LANES) {
		const uint quad = min(b, p.blocks - 1u) * 8u + j;
		vec4 lower = x[x_at + quad], upper = x[x_at + quad + 4u];
		if (NORM) {
			if (b < p.blocks) squares += dot(lower, lower) + dot(upper, upper);
			lower *= norm_w[KV_AT(3) / 4u + quad];
			upper *= norm_w[KV_AT(3) / 4u + quad + 4u];
		}
		const RoundedBlock r = round_block(lower, upper);
		const uint at = KV_AT(0) + (((b / 32u * n_t + t) * 2u) * 32u + b % 32u) * 4u + j;
		codes[at] = r.lower;
		codes[at + 128u] = r.upper;
		if (j == 0u)
			units[KV_AT(1) / 2u + (b / 32u * n_t + t) * 32u + b % 32u] = uvec2(floatBitsToUint(r.unit), uint(r.sums));
	}
	if (!NORM) return;
	const float own = subgroupAdd(squares);
	if (gl_SubgroupInvocationID == 0u) squares_s[gl_SubgroupID] = own;
	barrier();
	float sum = 0.0;
	[[unroll]] for (uint i = 0; i < LOCAL_X / SUBGROUP; i++) sum += squares_s[i];
	if (gl_LocalInvocationIndex == 0u)
		units[KV_AT(1) / 2u + tiles * n_t * 32u + t * 2u] =
			uvec2(floatBitsToUint(1.0 / sqrt(sum / float(p.blocks * 32u) + p.eps)), 0u);
}
