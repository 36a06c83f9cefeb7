// out[t] = sum over streams i of share i * x[i][t], the shares a softmax of w . x[i][t] / rms(x[i][t]), rms(v) =
// sqrt(mean_c v[c]^2 + eps)
//
// dims     out (rows, dim) f32; x m streams of rows of dim f32; w (dim) f32; dim a multiple of 4
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/streams.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { StreamAttendPush p; };
layout(set = 0, binding = 0) restrict writeonly buffer Out { vec4 out_x[]; };
layout(set = 0, binding = 1) restrict readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 2) restrict readonly buffer W { vec4 w[]; };

shared float shares[KV_MOST_ATTENDED];

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim / 4u;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) / 4u + (p.first + row) * p.x_row_stride * n, next = p.stream_stride * n;
	float most = 0.0;
	for (uint i = 0u; i < p.m; ++i) {
		float squares = 0.0, score = 0.0;
		for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
			const vec4 v = x[from + i * next + c];
			squares += dot(v, v), score += dot(v, w[KV_AT(2) / 4u + c]);
		}
		squares = workgroup_sum(squares) / float(p.dim) + p.eps;
		score = workgroup_sum(score) * inversesqrt(squares);
		most = i == 0u ? score : max(most, score);
		if (gl_LocalInvocationID.x == 0u) shares[i] = score;
	}
	barrier();
	float sum = 0.0;
	for (uint i = 0u; i < p.m; ++i) sum += exp(shares[i] - most);
	const uint to = KV_AT(0) / 4u + row * n;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		vec4 v = vec4(0.0);
		for (uint i = 0u; i < p.m; ++i) v += exp(shares[i] - most) / sum * x[from + i * next + c];
		out_x[to + c] = v;
	}
}
