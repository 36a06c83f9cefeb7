// out[r][c] = x[r][c] / sqrt(mean_c x[r][c]^2 + eps) * w[r % groups][c]
//
// dims     out, x (rows, dim) f32; w (groups, dim) f32
// grid     one workgroup per row: row = x + y * row_stride
// builds   one channel at a time; VEC4: four, for views at multiples of 16 bytes and dim a multiple of 4; VEC4 TEXELS:
//          the same for software drivers
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(push_constant) uniform Push { RmsNormPush p; };

#ifdef VEC4
#include "lib/input.glsl"
#define TYPE vec4
#define AT VEC4_AT
const uint STEP = 4u;
INPUT(1, readonly, X, x);
INPUT(2, restrict readonly, W, w);
#else
#define TYPE float
#define AT(name, i) name[i]
const uint STEP = 1u;
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 2) restrict readonly buffer W { float w[]; };
#endif
layout(set = 0, binding = 0) writeonly buffer Out { TYPE out_x[]; }; // may be x itself

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride, n = p.dim / STEP;
	if (row >= p.rows) return;
	const uint from = KV_AT(1) / STEP + row * n, to = KV_AT(0) / STEP + row * n, 
	           weight = KV_AT(2) / STEP + (p.groups > 1 ? row % p.groups : 0) * n;
	TYPE squares = TYPE(0.0);
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x) {
		const TYPE v = AT(x, from + c);
		squares += v * v;
	}
	const float scale = 1.0 / sqrt(workgroup_sum(dot(squares, TYPE(1.0))) / float(p.dim) + p.eps);
	for (uint c = gl_LocalInvocationID.x; c < n; c += gl_WorkGroupSize.x)
		out_x[to + c] = AT(x, from + c) * scale * AT(w, weight + c);
}
