// Largest |x| of each channel over rows and the query heads of a kv head: out = max(out, |x|).
//
//   0 out (n_kv_heads, head_dim) f32, read and written | 1 x (T, n_heads, head_dim) f32
// Grid: x = 32 channels of a kv head, y = kv head. LOCAL_X / 32 invocations share a channel's vectors.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { ChannelMaxPush p; };
layout(std430, binding = 0) restrict buffer Out { float o[]; };
layout(std430, binding = 1) readonly restrict buffer X { float x[]; };

const uint SLICES = LOCAL_X / 32, AHEAD = 8; // loads in flight
shared float most_s[LOCAL_X];

void main() {
	const uint i = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, c = gl_WorkGroupID.x * 32 + i % 32;
	const uint share = p.n_heads / p.n_kv_heads, n = p.n_rows * share, channel = min(c, p.head_dim - 1);
	float most = 0;
	for (uint first = i / 32; first < n; first += SLICES * AHEAD) {
		float v[AHEAD];
		[[unroll]] for (uint j = 0; j < AHEAD; j++) {
			const uint at = min(first + j * SLICES, n - 1), head = at / share * p.n_heads + h * share + at % share;
			v[j] = x[KV_AT(1) + head * p.head_dim + channel];
		}
		[[unroll]] for (uint j = 0; j < AHEAD; j++) most = max(most, abs(v[j]));
	}
	most_s[i] = most;
	barrier();
	if (i >= 32 || c >= p.head_dim) return;
	for (uint j = 1; j < SLICES; j++) most = max(most, most_s[i + 32 * j]);
	const uint to = KV_AT(0) + h * p.head_dim + c;
	o[to] = max(o[to], most);
}
