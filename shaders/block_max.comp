// The maximum of each block of a row, as an integer that orders as floats do; ~0 for a block with NaN or +inf.
//
//   0 block_max (T, blocks) u32, written | 1 x (T, n) f32
// Grid: x = a block for every 32 lanes, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/candidates.h"
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { CandidatesPush p; };
layout(std430, binding = 0) writeonly restrict buffer BlockMax { uint block_max[]; };
layout(std430, binding = 1) readonly restrict buffer X { float x[]; };
#include "lib/float_order.glsl"

const uint LANES = 32u; // lanes of a block
shared uint most_s[LOCAL_X / LANES];

void main() {
	const uint lane = gl_LocalInvocationIndex, own = lane / LANES;
	const uint block = gl_WorkGroupID.x * (LOCAL_X / LANES) + own, row = gl_WorkGroupID.y;
	if (lane % LANES == 0u) most_s[own] = 0u;
	barrier();
	uint most = 0u;
	[[unroll]] for (uint i = 0u; i < KV_LOGIT_BLOCK / LANES; i++) { // past the end: the last element again
		const uint at = min(block * KV_LOGIT_BLOCK + i * LANES + lane % LANES, p.n - 1u);
		most = max(most, float_order(x[KV_AT(1) + row * p.n + at]));
	}
	atomicMax(most_s[own], most);
	barrier();
	if (lane % LANES == 0u && block < p.blocks) block_max[KV_AT(0) + row * p.blocks + block] = most_s[own];
}
