// The share of a row's softmax weights that lies in its first parts: of (max_i, sum_i) of its partial states,
//   out = sum over i < inside of w_i sum_i / sum over all i,  w_i = exp(max_i - max_j max_j); 0 where no part saw a token
//
//   0 result (n, n_heads) f32, written | 1 parts (n_parts, n_heads, head_dim + 2) f32 | 2 work (n, 4) u32, ShareWork
// Grid: x = n * n_heads / LOCAL_X.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { PartSharePush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { float result[]; };
layout(std430, binding = 1) readonly restrict buffer Parts { float parts[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x;
	if (i >= p.n * p.n_heads) return;
	const uint item = KV_AT(2) + i / p.n_heads * 4, n = work[item + 1], inside = work[item + 2];
	const uint state = p.head_dim + 2, stride = p.n_heads * state;
	const uint at = KV_AT(1) + work[item] * stride + i % p.n_heads * state + p.head_dim;
	float top = -1e30, in_ = 0, all = 0;
	for (uint j = 0; j < n; j++) top = max(top, parts[at + j * stride]);
	for (uint j = 0; j < n; j++) {
		const float sum = parts[at + j * stride + 1], x = sum > 0 ? sum * exp(parts[at + j * stride] - top) : 0.0;
		all += x;
		if (j < inside) in_ += x;
	}
	result[KV_AT(0) + i] = all > 0 ? in_ / all : 0.0;
}
