// out[r][c] = x[r][c] / sqrt(mean_c x[r][c]^2 + eps) * w[c]
//
// dims     out, x (rows, dim) f32; w (dim) f32
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { RmsNormPush p; };

layout(set = 0, binding = 0) writeonly buffer Out { float out_x[]; }; // may be x itself
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 2) restrict readonly buffer W { float w[]; };

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) + row * p.dim, to = KV_AT(0) + row * p.dim;
	float squares = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < p.dim; c += gl_WorkGroupSize.x) squares += x[from + c] * x[from + c];
	const float scale = 1.0 / sqrt(workgroup_sum(squares) / float(p.dim) + p.eps);
	for (uint c = gl_LocalInvocationID.x; c < p.dim; c += gl_WorkGroupSize.x)
		out_x[to + c] = x[from + c] * scale * w[KV_AT(2) + c];
}
