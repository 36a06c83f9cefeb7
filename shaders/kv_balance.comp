// MiKV eq. (2): b = sqrt(max |q| / max |k|) of each channel, or 1 if that is 0; k over the prompt's first n rows.
//
//   0 b (n_kv_heads, head_dim) f16 as words, written | 1 q_max (n_kv_heads, head_dim) f32 | 2 k (n_kv_heads, t_cap,
//   head_dim) f16 as words
// Grid: x = 32 words of a head, y = kv head. LOCAL_X / 32 invocations share a word's rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/numeric.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { KvBalancePush p; };
layout(std430, binding = 0) writeonly restrict buffer B { uint b[]; };
layout(std430, binding = 1) readonly restrict buffer QMax { float q_max[]; };
layout(std430, binding = 2) readonly restrict buffer K { uint k[]; };

const uint SLICES = LOCAL_X / 32, AHEAD = 8; // loads in flight
shared vec2 most_s[LOCAL_X];

// balance_factor() of engine/kv_host/quant.h, as f16 bits.
uint factor(float q, float k) {
	if (!(k > 0)) return 0x3c00u;
	const uint f = min(f16_bits(sqrt(q / max(k, 1e-12))), 0x7bffu);
	return f == 0 ? 0x3c00u : f;
}

void main() {
	const uint i = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, w = gl_WorkGroupID.x * 32 + i % 32;
	const uint words = p.head_dim / 2, word = min(w, words - 1);
	vec2 most = vec2(0);
	for (uint first = i / 32; first < p.n; first += SLICES * AHEAD) {
		uint x[AHEAD];
		[[unroll]] for (uint j = 0; j < AHEAD; j++)
			x[j] = k[KV_AT(2) + (h * p.t_cap + min(first + j * SLICES, p.n - 1)) * words + word];
		[[unroll]] for (uint j = 0; j < AHEAD; j++) most = max(most, abs(unpackHalf2x16(x[j])));
	}
	most_s[i] = most;
	barrier();
	if (i >= 32 || w >= words) return;
	for (uint j = 1; j < SLICES; j++) most = max(most, most_s[i + 32 * j]);
	const uint at = KV_AT(1) + h * p.head_dim + 2 * w;
	b[KV_AT(0) + h * words + w] = factor(q_max[at], most.x) | factor(q_max[at + 1], most.y) << 16;
}
