// Channels of heads beside each other: of each token and head of out those of a, then those of b, then zeros.
//
//   binding  name  shape
//   0        out   (n, n_heads, channels) f32 or (n_heads, capacity, channels) f16, written
//   1        a     the same kinds
//   2        b     the same; unused without JOIN_B
// Grid: x = pairs of channels of all tokens / LOCAL_X, y = head. Strides and starts are in words.
// FLAGS: JOIN_*
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/flags.h"
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { JoinHeadsPush p; };

layout(binding = 0) restrict writeonly buffer Out { uint out_w[]; };
layout(binding = 1) restrict readonly buffer A { uint a[]; };
layout(binding = 2) restrict readonly buffer B { uint b[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x, head = gl_WorkGroupID.y;
	if (i >= p.n_pairs) return;
	const uint t = i / p.pairs, c = i % p.pairs;
	vec2 x = vec2(0);
	if (c < p.a_pairs) {
		const uint at = KV_AT(1) + p.a_at + head * p.a_head + t * p.a_token;
		if ((FLAGS & JOIN_A_HALVES) != 0) x = unpackHalf2x16(a[at + c]);
		else x = vec2(uintBitsToFloat(a[at + 2 * c]), uintBitsToFloat(a[at + 2 * c + 1]));
	} else if ((FLAGS & JOIN_B) != 0 && c - p.a_pairs < p.b_pairs) {
		const uint at = KV_AT(2) + p.b_at + head * p.b_head + t * p.b_token, d = c - p.a_pairs;
		if ((FLAGS & JOIN_B_HALVES) != 0) x = unpackHalf2x16(b[at + d]);
		else x = vec2(uintBitsToFloat(b[at + 2 * d]), uintBitsToFloat(b[at + 2 * d + 1]));
	}
	const uint to = KV_AT(0) + p.out_at + head * p.out_head + t * p.out_token;
	if ((FLAGS & JOIN_OUT_HALVES) != 0) {
		out_w[to + c] = packHalf2x16(x);
	} else {
		out_w[to + 2 * c] = floatBitsToUint(x.x);
		out_w[to + 2 * c + 1] = floatBitsToUint(x.y);
	}
}
