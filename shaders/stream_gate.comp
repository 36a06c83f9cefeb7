// out[r] = sigmoid(root(s)) * value[r / m], s = key[r] . query[r] / sqrt(dim), of each row r = token * m + stream;
// root(s) = sign(s) * sqrt(max(|s|, KV_GATE_LEAST))
//
// dims     out, key, query (rows, dim) f32; value (rows / m, dim) f32; dim a multiple of 4
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/streams.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { StreamGatePush p; };
layout(set = 0, binding = 0) writeonly buffer Out { vec4 out_x[]; }; // may be key
layout(set = 0, binding = 1) readonly buffer Key { vec4 key[]; };
layout(set = 0, binding = 2) restrict readonly buffer Query { vec4 query[]; };
layout(set = 0, binding = 3) restrict readonly buffer Value { vec4 value[]; };

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim / 4u;
	if (row >= p.rows) return;
	const uint keys = KV_AT(1) / 4u + row * n, queries = KV_AT(2) / 4u + row * n;
	float s = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) s += dot(key[keys + c], query[queries + c]);
	s = workgroup_sum(s) / sqrt(float(p.dim));
	const float share = 1.0 / (1.0 + exp(-sign(s) * sqrt(max(abs(s), KV_GATE_LEAST))));
	const uint to = KV_AT(0) / 4u + row * n, from = KV_AT(3) / 4u + row / p.m * n;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) out_x[to + c] = share * value[from + c];
}
