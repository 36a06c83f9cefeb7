// The indices of the k largest weights of each list of non-negative weights, ascending; then ~0.
//
//   0 picks u32 words, written | 1 weight f32 words | 2 work (n, 4) u32, TopWork
// First the k-th largest weight is found (lib/kth_largest.glsl). Then all larger ones are listed, and the first of
// those equal to it.
// Grid: x = work item.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { TopPush p; };
layout(std430, binding = 0) writeonly restrict buffer Picks { uint picks[]; };
layout(std430, binding = 1) readonly restrict buffer Weight { float weight[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };
const TopWork FIELD = TopWork(WORDS_4);

const uint GROUP = 32, GROUPS = (LOCAL_X + GROUP - 1) / GROUP;
shared uvec2 tally_s[LOCAL_X],
    group_s[GROUPS]; // weights above the k-th largest, equal to it: in a lane's share of the list, in a group's

uint from = 0;
// Increases with the weight; 0: not a candidate.
uint rank(uint i) {
	const float w = weight[from + i];
	return w >= 0 ? (floatBitsToUint(w) & 0x7fffffffu) + 1u : 0u;
}

#include "lib/kth_largest.glsl"

void main() {
	const uint lane = gl_LocalInvocationIndex, item = KV_AT(2) + gl_WorkGroupID.x * TOP_WORDS;
	from = KV_AT(1) + work[item + FIELD.weights];
	const uint n = work[item + FIELD.n], to = KV_AT(0) + work[item + FIELD.picks], k = work[item + FIELD.k];
	uint wanted; // wanted among those that equal it
	const uint bits = kth_largest(n, k, wanted);
	const uint share = (n + LOCAL_X - 1) / LOCAL_X, begin = min(lane * share, n), end = min(begin + share, n);
	uint above = 0, equal = 0;
	for (uint first = begin; first < end; first += AHEAD) {
		uint x[AHEAD];
		load_ranks(first, 1, end, x);
		[[unroll]] for (uint i = 0; i < AHEAD; i++) {
			above += uint(x[i] > bits);
			equal += uint(x[i] == bits && x[i] != 0u);
		}
	}
	tally_s[lane] = uvec2(above, equal);
	barrier();
	if (lane < GROUPS) {
		uvec2 sum = uvec2(0);
		for (uint i = lane * GROUP; i < min(lane * GROUP + GROUP, LOCAL_X); i++) sum += tally_s[i];
		group_s[lane] = sum;
	}
	barrier();
	uvec2 before = uvec2(0), all = uvec2(0); // counts of the lanes before this one, of all lanes
	for (uint g = 0; g < GROUPS; g++) {
		if (g == lane / GROUP) before = all;
		all += group_s[g];
	}
	for (uint i = lane / GROUP * GROUP; i < lane; i++) before += tally_s[i];
	uint ties = before.y, at = before.x + min(ties, wanted);
	for (uint first = begin; first < end; first += AHEAD) {
		uint x[AHEAD];
		load_ranks(first, 1, end, x);
		[[unroll]] for (uint i = 0; i < AHEAD; i++) {
			const bool tie = x[i] == bits && x[i] != 0u, taken = x[i] > bits || (tie && ties < wanted);
			ties += uint(tie);
			if (taken && at < k) {
				picks[to + at] = first + i;
				at++;
			}
		}
	}
	for (uint i = min(all.x + min(all.y, wanted), k) + lane; i < k; i += LOCAL_X) picks[to + i] = ~0u;
}
