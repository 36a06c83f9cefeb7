// rmsnorm.comp for software drivers: out[r][c] = x[r][c] / sqrt(mean_c x[r][c]^2 + eps) * w[c], x and w read as texels.
//
// dims     out, x (rows, dim) f32; w (dim) f32; views at multiples of 16 bytes, dim a multiple of 4
// grid     one workgroup per row: row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { RmsNormPush p; };

layout(set = 0, binding = 0) writeonly buffer Out { vec4 out_x[]; }; // may be x itself
layout(set = 0, binding = 1) uniform utextureBuffer x;
layout(set = 0, binding = 2) uniform utextureBuffer w;

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim / 4u;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) / 4u + row * n, to = KV_AT(0) / 4u + row * n, weight = KV_AT(2) / 4u;
	vec4 squares = vec4(0.0);
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		const vec4 v = uintBitsToFloat(texelFetch(x, int(from + c)));
		squares += v * v;
	}
	const float scale = 1.0 / sqrt(workgroup_sum(dot(squares, vec4(1.0))) / float(p.dim) + p.eps);
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) out_x[to + c] = uintBitsToFloat(texelFetch(x, int(from + c))) * scale * uintBitsToFloat(texelFetch(w, int(weight + c)));
}
