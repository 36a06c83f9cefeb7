// out[t] = sum over i of sigmoid(gate[t][i]) * x[t][i], of each token t.
//
// 0 out (rows, dim) f32 | 1 x (rows, m, dim) f32 | 2 gate (rows, m, dim) f32; dim a multiple of 4
// grid     x: dim / 4 / LOCAL_X, row = y + z * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/streams.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { StreamMixPush p; };

layout(binding = 0) restrict writeonly buffer Out { vec4 out_x[]; };
layout(binding = 1) restrict readonly buffer X { vec4 x[]; };
layout(binding = 2) restrict readonly buffer Gate { vec4 gate[]; };

void main() {
	const uint c = gl_GlobalInvocationID.x, n = p.dim / 4u, row = gl_WorkGroupID.y + gl_WorkGroupID.z * p.row_stride;
	if (c >= n || row >= p.rows) return;
	vec4 sum = vec4(0.0);
	[[unroll]] for (uint i = 0u; i < KV_MOST_STREAMS; ++i) {
		if (i >= p.m) break;
		const uint at = (row * p.m + i) * n + c;
		sum += x[KV_AT(1) / 4u + at] / (1.0 + exp(-gate[KV_AT(2) / 4u + at]));
	}
	out_x[KV_AT(0) / 4u + row * n + c] = sum;
}
