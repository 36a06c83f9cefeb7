// x[t] += sum_j weights[t][j] * y[t][j], in the order of j.
//
// 0 x (T, dim) f32 | 1 y (T, used, dim) f32 | 2 weights (T, used) f32; dim a multiple of 4
// grid     x: dim / 4 / LOCAL_X, row = y + z * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { ExpertSumPush p; };

layout(binding = 0) restrict buffer X { vec4 x[]; };
layout(binding = 1) restrict readonly buffer Y { vec4 y[]; };
layout(binding = 2) restrict readonly buffer Weights { float weights[]; };

void main() {
	const uint c = gl_GlobalInvocationID.x, n = p.dim / 4u, row = gl_WorkGroupID.y + gl_WorkGroupID.z * p.row_stride;
	if (c >= n || row >= p.rows) return;
	const uint at = KV_AT(0) / 4u + row * n + c;
	vec4 sum = x[at];
	for (uint j = 0u; j < p.used; ++j) {
		const uint slot = row * p.used + j;
		sum = fma(vec4(weights[KV_AT(2) + slot]), y[KV_AT(1) / 4u + slot * n + c], sum);
	}
	x[at] = sum;
}
