// The indices of the k largest of each list of weights that are not negative, ascending; ~0 behind them.
//
//   0 picks u32 words, written | 1 weight f32 words | 2 work (n, 4) u32, TopWork
// Four passes find the k-th largest weight, 8 bits at a time: a histogram of the next 8 bits of all weights that agree
// with it so far. Then what lies above is listed, and of its equals the first.
// Grid: x = work item.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { TopPush p; };
layout(std430, binding = 0) writeonly restrict buffer Picks { uint picks[]; };
layout(std430, binding = 1) readonly restrict buffer Weight { float weight[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };

const uint AHEAD = 8;                             // loads in flight
const uint BINS = 256, CHUNK = 16;                // of a histogram; bins that are summed together
const uint GROUP = 32, GROUPS = (LOCAL_X + GROUP - 1) / GROUP;
shared uint count_s[BINS], chunk_s[BINS / CHUNK];
shared uvec2 tally_s[LOCAL_X], group_s[GROUPS];   // above the k-th largest, equal to it: in a lane's share of the list, in a group's
shared uint bits_s, wanted_s;

uint from = 0;
// Grows with the weight; 0: no candidate.
uint rank(uint i) {
	const float w = weight[from + i];
	return w >= 0 ? (floatBitsToUint(w) & 0x7fffffffu) + 1u : 0u;
}

// Ranks of elements first, first + step, ...; 0 from `end` on. first < end. Nothing branches around a load, so that all are in
// flight together.
void load_ranks(uint first, uint step, uint end, out uint x[AHEAD]) {
	[[unroll]] for (uint i = 0; i < AHEAD; i++) x[i] = rank(min(first + i * step, end - 1));
	[[unroll]] for (uint i = 0; i < AHEAD; i++)
		if (first + i * step >= end) x[i] = 0u;
}

void main() {
	const uint lane = gl_LocalInvocationIndex, item = KV_AT(2) + gl_WorkGroupID.x * 4;
	from = KV_AT(1) + work[item];
	const uint n = work[item + 1], to = KV_AT(0) + work[item + 2], k = work[item + 3];
	uint bits = 0, mask = 0;
	for (uint pass = 0; pass < 4; pass++) {
		const uint shift = 24 - 8 * pass;
		for (uint i = lane; i < BINS; i += LOCAL_X) count_s[i] = 0;
		barrier();
		for (uint first = lane; first < n; first += LOCAL_X * AHEAD) {
			uint x[AHEAD];
			load_ranks(first, LOCAL_X, n, x);
			[[unroll]] for (uint i = 0; i < AHEAD; i++)
				if (x[i] != 0u && (x[i] & mask) == bits) atomicAdd(count_s[x[i] >> shift & 255u], 1u);
		}
		barrier();
		for (uint c = lane; c < BINS / CHUNK; c += LOCAL_X) {
			uint sum = 0;
			for (uint i = 0; i < CHUNK; i++) sum += count_s[c * CHUNK + i];
			chunk_s[c] = sum;
		}
		barrier();
		if (lane == 0) {
			if (pass == 0) {
				uint candidates = 0;
				for (uint c = 0; c < BINS / CHUNK; c++) candidates += chunk_s[c];
				wanted_s = min(k, candidates);
			}
			// From the top: the chunk, then the bin, in which the wanted one lies.
			uint left = wanted_s, c = BINS / CHUNK - 1, b = BINS;
			if (left > 0) {
				for (; c > 0 && chunk_s[c] < left; c--) left -= chunk_s[c];
				for (b = c * CHUNK + CHUNK - 1; b > c * CHUNK && count_s[b] < left; b--) left -= count_s[b];
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
	uvec2 before = uvec2(0), all = uvec2(0); // of the lanes before this one, of all
	for (uint g = 0; g < GROUPS; g++) {
		if (g == lane / GROUP) before = all;
		all += group_s[g];
	}
	for (uint i = lane / GROUP * GROUP; i < lane; i++) before += tally_s[i];
	uint ties = before.y, at = before.x + min(ties, wanted_s);
	for (uint first = begin; first < end; first += AHEAD) {
		uint x[AHEAD];
		load_ranks(first, 1, end, x);
		[[unroll]] for (uint i = 0; i < AHEAD; i++) {
			const bool tie = x[i] == bits && x[i] != 0u, taken = x[i] > bits || (tie && ties < wanted_s);
			ties += uint(tie);
			if (taken && at < k) {
				picks[to + at] = first + i;
				at++;
			}
		}
	}
	for (uint i = min(all.x + min(all.y, wanted_s), k) + lane; i < k; i += LOCAL_X) picks[to + i] = ~0u;
}
