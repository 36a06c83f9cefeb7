// MiKV eq. (2): b = sqrt(max |q| / max |k|) of each channel, 1 where that is 0; k over the prompt's first n rows.
//
//   0 b (n_kv_heads, head_dim) f16 as words, written | 1 q_max (n_kv_heads, head_dim) f32 | 2 k (n_kv_heads, t_cap,
//   head_dim) f16 as words
// Grid: x = 32 words of a head, y = kv head. 128 invocations: 32 words, each read by 4 that share the rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "lib/numeric.glsl"
layout(local_size_x = 128) in;
layout(push_constant) uniform Push { KvBalancePush p; };
layout(std430, binding = 0) writeonly restrict buffer B { uint b[]; };
layout(std430, binding = 1) readonly restrict buffer QMax { float q_max[]; };
layout(std430, binding = 2) readonly restrict buffer K { uint k[]; };

shared vec2 most_s[128];

// balance_factor() of engine/kv/quant.h, as f16 bits.
uint factor(float q, float k) {
	if (!(k > 0)) return 0x3c00u;
	const uint f = min(f16_bits(sqrt(q / max(k, 1e-12))), 0x7bffu);
	return f == 0 ? 0x3c00u : f;
}

void main() {
	const uint i = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, w = gl_WorkGroupID.x * 32 + i % 32;
	const uint words = p.head_dim / 2, word = min(w, words - 1);
	vec2 most = vec2(0);
	for (uint t = i / 32; t < p.n; t += 4)
		most = max(most, abs(unpackHalf2x16(k[KV_AT(2) + (h * p.t_cap + t) * words + word])));
	most_s[i] = most;
	barrier();
	if (i >= 32 || w >= words) return;
	most = max(max(most_s[i], most_s[i + 32]), max(most_s[i + 64], most_s[i + 96]));
	const uint at = KV_AT(1) + h * p.head_dim + 2 * w;
	b[KV_AT(0) + h * words + w] = factor(q_max[at], most.x) | factor(q_max[at + 1], most.y) << 16;
}
