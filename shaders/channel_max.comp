// Largest |x| of each channel over rows and the query heads of a kv head: out = max(out, |x|).
//
//   0 out (n_kv_heads, head_dim) f32, read and written | 1 x (T, n_heads, head_dim) f32
// Grid: x = LOCAL_X of the kv heads' channels, one each invocation.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { ChannelMaxPush p; };
layout(std430, binding = 0) restrict buffer Out { float o[]; };
layout(std430, binding = 1) readonly restrict buffer X { float x[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x, share = p.n_heads / p.n_kv_heads;
	if (i >= p.n_kv_heads * p.head_dim) return;
	const uint h = i / p.head_dim, c = i % p.head_dim;
	float most = o[KV_AT(0) + i];
	for (uint t = 0; t < p.n_rows; t++)
		for (uint j = 0; j < share; j++) most = max(most, abs(x[KV_AT(1) + (t * p.n_heads + h * share + j) * p.head_dim + c]));
	o[KV_AT(0) + i] = most;
}
