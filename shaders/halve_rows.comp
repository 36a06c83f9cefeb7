// x rounded to f16: input of matmul_matrix.comp. Numbers beyond 65504 become 65504; a NaN stays one.
//
//   binding  name    shape
//   0        halves  (T, pieces, 8) f16, written; 0 behind the last column
//   1        x       (T, cols) f32, cols a multiple of 4
// Grid: x = pieces / LOCAL_X, y and z = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { HalveRowsPush p; };

layout(binding = 0) restrict writeonly buffer Halves { uvec4 halves[]; };
layout(binding = 1) restrict readonly buffer X { vec4 x[]; };

#include "lib/halves.glsl"

vec4 quad_of(uint row, uint i) {
	return i < p.cols / 4u ? x[KV_AT(1) / 4u + row * (p.cols / 4u) + i] : vec4(0);
}

void main() {
	const uint piece = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y + gl_WorkGroupID.z * p.row_stride;
	if (row >= p.rows || piece >= p.pieces) return;
	halves[KV_AT(0) / 4u + row * p.pieces + piece] =
		finite_halves8(quad_of(row, 2u * piece), quad_of(row, 2u * piece + 1u));
}
