// The indices of the k largest of each list of weights that are not negative, ascending; ~0 behind them.
//
//   0 picks u32 words, written | 1 weight f32 words | 2 work (n, 4) u32, TopWork
// Four passes find the k-th largest weight, 8 bits at a time: a histogram of the next 8 bits of all weights that agree
// with it so far. Then what lies above is listed, and of its equals the first.
// Grid: x = work item.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { TopPush p; };
layout(std430, binding = 0) writeonly restrict buffer Picks { uint picks[]; };
layout(std430, binding = 1) readonly restrict buffer Weight { float weight[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };

shared uint count_s[256];
shared uint above_s[LOCAL_X], equal_s[LOCAL_X]; // of a lane's share of the list; then of all before it
shared uint bits_s, wanted_s, total_s;

uint from = 0;
// Grows with the weight; 0: no candidate.
uint rank(uint i) {
	const float w = weight[from + i];
	return w >= 0 ? (floatBitsToUint(w) & 0x7fffffffu) + 1u : 0u;
}

void main() {
	const uint lane = gl_LocalInvocationIndex, item = KV_AT(2) + gl_WorkGroupID.x * 4;
	from = KV_AT(1) + work[item];
	const uint n = work[item + 1], to = KV_AT(0) + work[item + 2], k = work[item + 3];
	uint bits = 0, mask = 0;
	for (uint pass = 0; pass < 4; pass++) {
		const uint shift = 24 - 8 * pass;
		for (uint i = lane; i < 256; i += LOCAL_X) count_s[i] = 0;
		barrier();
		for (uint i = lane; i < n; i += LOCAL_X) {
			const uint x = rank(i);
			if (x != 0u && (x & mask) == bits) atomicAdd(count_s[x >> shift & 255u], 1u);
		}
		barrier();
		if (lane == 0) {
			if (pass == 0) {
				uint candidates = 0;
				for (uint i = 0; i < 256; i++) candidates += count_s[i];
				wanted_s = min(k, candidates);
			}
			uint left = wanted_s, b = 256;
			while (b > 0 && left > 0) {
				b--;
				if (count_s[b] >= left) break;
				left -= count_s[b];
			}
			wanted_s = left;
			bits_s = bits | b << shift;
		}
		barrier();
		bits = bits_s;
		mask |= 255u << shift;
		barrier();
	}
	const uint share = (n + LOCAL_X - 1) / LOCAL_X, begin = min(lane * share, n), end = min(begin + share, n);
	uint above = 0, equal = 0;
	for (uint i = begin; i < end; i++) {
		const uint x = rank(i);
		above += uint(x > bits);
		equal += uint(x == bits && x != 0u);
	}
	above_s[lane] = above;
	equal_s[lane] = equal;
	barrier();
	if (lane == 0) {
		uint a = 0, e = 0;
		for (uint i = 0; i < LOCAL_X; i++) {
			const uint own_a = above_s[i], own_e = equal_s[i];
			above_s[i] = a;
			equal_s[i] = e;
			a += own_a;
			e += own_e;
		}
		total_s = min(a + min(e, wanted_s), k);
	}
	barrier();
	uint ties = equal_s[lane], at = above_s[lane] + min(ties, wanted_s);
	for (uint i = begin; i < end; i++) {
		const uint x = rank(i);
		const bool tie = x == bits && x != 0u, taken = x > bits || (tie && ties < wanted_s);
		ties += uint(tie);
		if (taken && at < k) {
			picks[to + at] = i;
			at++;
		}
	}
	for (uint i = total_s + lane; i < k; i += LOCAL_X) picks[to + i] = ~0u;
}
