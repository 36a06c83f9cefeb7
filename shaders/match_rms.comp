// out[r][c] = x[r][c] * w[c] * rms(like[r]) / rms(x[r]), rms(v) = sqrt(mean_c v[c]^2 + eps)
//
// dims     out, x, like (rows, dim) f32; w (dim) f32
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { RmsNormPush p; };
layout(set = 0, binding = 0) writeonly buffer Out { float out_x[]; }; // may be x or like
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 2) restrict readonly buffer W { float w[]; };
layout(set = 0, binding = 3) readonly buffer Like { float like[]; }; // may be x

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) + row * n, to = KV_AT(0) + row * n, other = KV_AT(3) + row * n;
	float mine = 0.0, theirs = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		mine += x[from + c] * x[from + c];
		theirs += like[other + c] * like[other + c];
	}
	mine = workgroup_sum(mine) / float(n) + p.eps;
	theirs = workgroup_sum(theirs) / float(n) + p.eps;
	const float scale = sqrt(theirs) * inversesqrt(mine);
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x)
		out_x[to + c] = x[from + c] * scale * w[KV_AT(2) + c];
}
