// The share of a row's softmax weights that lies in its first `inside` parts, from (max_i, sum_i) of its partial
// states:
//   out = sum over i < inside of w_i sum_i / sum over all i of w_i sum_i,  w_i = exp(max_i - max_j max_j)
//   0 where no part saw a token
//
//   0 result (n, n_heads) f32, written | 1 parts (n_parts, n_heads, head_dim + 2) f32 | 2 work (n, 4) u32, ShareWork
// Grid: x = head, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
#include "lib/no_token.glsl"
layout(push_constant) uniform Push { PartSharePush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { float result[]; };
layout(std430, binding = 1) readonly restrict buffer Parts { float parts[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };
const ShareWork FIELD = ShareWork(WORDS_4);

void main() {
	const uint row = gl_WorkGroupID.y, head = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
	const uint item = KV_AT(2) + row * SHARE_WORDS, n = work[item + FIELD.n], inside = work[item + FIELD.inside];
	const uint state = p.head_dim + 2, stride = p.n_heads * state;
	const uint at = KV_AT(1) + work[item + FIELD.first] * stride + head * state + p.head_dim;
	float top = NO_TOKEN, in_ = 0, all = 0;
	for (uint j = lane; j < n; j += gl_WorkGroupSize.x) top = max(top, parts[at + j * stride]);
	top = workgroup_max(top);
	for (uint j = lane; j < n; j += gl_WorkGroupSize.x) {
		const float sum = parts[at + j * stride + 1], x = sum > 0 ? sum * exp(parts[at + j * stride] - top) : 0.0;
		all += x;
		if (j < inside) in_ += x;
	}
	all = workgroup_sum(all);
	in_ = workgroup_sum(in_);
	if (lane == 0) result[KV_AT(0) + row * p.n_heads + head] = all > 0 ? in_ / all : 0.0;
}
