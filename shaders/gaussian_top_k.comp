// out[r][c] = max(x[r][c] - (mean + cut * deviation), 0), mean and standard deviation of row r
//
// dims     out, x (rows, dim) f32
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { GaussianTopKPush p; };
layout(set = 0, binding = 0) writeonly buffer Out { float out_x[]; }; // may be x
layout(set = 0, binding = 1) readonly buffer X { float x[]; };

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) + row * n, to = KV_AT(0) + row * n;
	float sum = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) sum += x[from + c];
	const float mean = workgroup_sum(sum) / float(n);
	float squares = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		const float d = x[from + c] - mean;
		squares += d * d;
	}
	const float low = mean + p.cut * sqrt(workgroup_sum(squares) / float(n));
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) out_x[to + c] = max(x[from + c] - low, 0.0);
}
