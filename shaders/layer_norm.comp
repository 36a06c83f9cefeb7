// out[r][c] = (x[r][c] - mean) / sqrt(variance + eps) * w[r % groups][c] + b[r % groups][c], mean and variance of row r
//
// dims     out, x (rows, dim) f32; w, b (groups, dim) f32; without b, w is bound in its place
// grid     one workgroup per row: row = x + y * row_stride
// FLAGS    LAYER_NORM_BIAS
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { LayerNormPush p; };
layout(set = 0, binding = 0) writeonly buffer Out { float out_x[]; }; // may be the same memory as x
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 2) readonly buffer W { float w[]; };
layout(set = 0, binding = 3) readonly buffer B { float b[]; };

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
	const float scale = 1.0 / sqrt(workgroup_sum(squares) / float(n) + p.eps);
	const uint of_group = (p.groups > 1 ? row % p.groups : 0) * n, weight = KV_AT(2) + of_group;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		const float v = (x[from + c] - mean) * scale * w[weight + c];
		out_x[to + c] = (FLAGS & LAYER_NORM_BIAS) != 0 ? v + b[KV_AT(3) + of_group + c] : v;
	}
}
