// x rounded to int8 in blocks of 32, stored block by block: input of matmul_int8.comp.
//
//   binding  name   shape
//   0        codes  (blocks, T, 32) int8, written
//   1        units  (blocks, T) vec2, written: unit; unit times the sum of the block's codes
//   2        x      (T, cols) f32, cols a multiple of 32; blocks = cols / 32
// Grid: x = blocks / (LOCAL_X / 4), y and z = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { RoundRowsPush p; };

layout(binding = 0) restrict writeonly buffer Codes { uint codes[]; };
layout(binding = 1) restrict writeonly buffer Units { vec2 units[]; };
layout(binding = 2) restrict readonly buffer X { vec4 x[]; };
#include "lib/round_block.glsl"

void main() {
	const uint j = gl_LocalInvocationIndex % BLOCK_LANES, row = gl_WorkGroupID.y + gl_WorkGroupID.z * p.row_stride;
	if (row >= p.rows) return; // the same for the whole workgroup
	const uint block = gl_WorkGroupID.x * (LOCAL_X / BLOCK_LANES) + gl_LocalInvocationIndex / BLOCK_LANES;
	const uint at = KV_AT(2) / 4u + row * p.blocks * 8u + min(block, p.blocks - 1u) * 8u + j;
	const RoundedBlock b = round_block(x[at], x[at + 4u]);
	if (block >= p.blocks) return;
	const uint to = block * p.rows + row;
	codes[KV_AT(0) + to * 8u + j] = b.lower;
	codes[KV_AT(0) + to * 8u + 4u + j] = b.upper;
	const ivec2 sums = half_sums(b.sums);
	if (j == 0u) units[KV_AT(1) / 2u + to] = vec2(b.unit, b.unit * float(sums.x + sums.y));
}
