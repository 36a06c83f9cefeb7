// The tokens that a row attends to, as bits (op::IndexPick): its `most` whole blocks with the largest scores, among
// equal ones the first, and the tokens behind its last whole block. With p.local, the last p.local blocks of which it
// sees a token, and of those before the best.
//
//   0 bits (T, n_words) u32, written | 1 score (T, capacity) f32 | 2 seen (T) u32
// Grid: x = row. First the score of the last chosen block is found (lib/kth_largest.glsl). Then invocations count the
// equal ones among their words, so that each knows how many come before its own.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { IndexPickPush p; };
layout(std430, binding = 0) writeonly restrict buffer Bits { uint bits[]; };
layout(std430, binding = 1) readonly restrict buffer Score { float score[]; };
layout(std430, binding = 2) readonly restrict buffer Seen { uint seen[]; };

const uint GROUP = 32, GROUPS = (LOCAL_X + GROUP - 1) / GROUP;
shared uint ties_s[LOCAL_X], group_s[GROUPS]; // blocks of a lane's words with the last chosen score, of a group's

uint from = 0;
// Increases with the score, equal for both zeros; never 0 for a number (lib/float_order.glsl, without tests for NaN).
uint rank(uint i) {
	const uint x = floatBitsToUint(score[from + i]), sign = uint(int(x) >> 31);
	return x == 0x80000000u ? x : x ^ (sign | 0x80000000u);
}

#include "lib/kth_largest.glsl"

// The lowest n bits, n at most 32.
uint low_bits(uint n) { return n == 0 ? 0u : ~0u >> (32 - n); }

// Bits of tokens first .. end - 1 in a word.
uint tail(uint word, uint first, uint end) {
	const uint base = word * 32;
	return low_bits(clamp(end, base, base + 32) - base) & ~low_bits(clamp(first, base, base + 32) - base);
}

void main() {
	const uint lane = gl_LocalInvocationIndex, row = gl_WorkGroupID.x, to = KV_AT(0) + row * p.n_words;
	from = KV_AT(1) + row * p.capacity;
	const uint n_seen = min(seen[KV_AT(2) + row], p.n_words * 32);
	const uint begun = p.local == 0 ? n_seen / p.block : (n_seen + p.block - 1) / p.block;
	const uint n = min(begun - min(begun, p.local), p.capacity), rest = n * p.block; // tokens from `rest` on are read
	// A lane's share is a number of units: words with whole blocks, or a block of several words.
	const uint per_unit = max(32 / p.block, 1), words = max(p.block / 32, 1), n_units = (n + per_unit - 1) / per_unit;
	const uint share = (n_units + LOCAL_X - 1) / LOCAL_X, begin = min(lane * share, n_units),
	           end = min(begin + share, n_units);
	uint bound = 0, wanted = 0, before = 0; // a block above the bound is chosen, of those that equal it the first
	if (n > p.most) {                       // uniform over all lanes
		bound = kth_largest(n, p.most, wanted);
		uint ties = 0;
		const uint end_block = min(end * per_unit, n);
		for (uint first = begin * per_unit; first < end_block; first += AHEAD) {
			uint x[AHEAD];
			load_ranks(first, 1, end_block, x);
			[[unroll]] for (uint i = 0; i < AHEAD; i++) ties += uint(x[i] == bound);
		}
		ties_s[lane] = ties;
		barrier();
		if (lane < GROUPS) {
			uint sum = 0;
			for (uint i = lane * GROUP; i < min(lane * GROUP + GROUP, LOCAL_X); i++) sum += ties_s[i];
			group_s[lane] = sum;
		}
		barrier();
		// Unrolled, these loops would need a mask of lanes for each round: more scalar registers than there are.
		[[dont_unroll]] for (uint g = 0; g < lane / GROUP; g++) before += group_s[g];
		[[dont_unroll]] for (uint i = lane / GROUP * GROUP; i < lane; i++) before += ties_s[i];
	}
	for (uint unit = begin; unit < end; unit++) {
		const uint first = unit * per_unit, end_block = min(first + per_unit, n);
		uint x[AHEAD], of_unit = 0, tokens = low_bits(min(p.block, 32));
		for (uint b = 0; first + b < end_block; b += AHEAD) {
			load_ranks(first + b, 1, end_block, x);
			[[unroll]] for (uint i = 0; i < AHEAD; i++) {
				const bool tie = bound != 0 && x[i] == bound;
				if (x[i] > bound || (tie && before < wanted)) of_unit |= tokens;
				before += uint(tie);
				tokens <<= p.block & 31; // a block of words is the unit's only one
			}
		}
		for (uint word = unit * words; word < unit * words + words; word++)
			bits[to + word] = of_unit | tail(word, rest, n_seen);
	}
	for (uint word = n_units * words + lane; word < p.n_words; word += LOCAL_X)
		bits[to + word] = tail(word, rest, n_seen);
}
