// The output of a row and head from its partial states, if there are few. Shared by attend_merge.comp and attend.comp.
//
//   out = sum_i w_i acc_i / sum_i w_i sum_i,  w_i = exp(max_i - max_j max_j);  0 where no part saw a token
//
// A sink is one more score, without a value: it takes part in the maximum and adds exp(sink - maximum) below.
//
// The including file declares parts, in vec2, HEAD_DIM and SINKS, a constant. A state is HEAD_DIM sums of weight *
// value, the maximum score and the sum of weights.
#include "lib/no_token.glsl"

const uint PAIRS = HEAD_DIM / 2u; // of a state, before (maximum, sum of weights)

// A function, because glslang applies `precise` below to all writes of an array that it sees being read; attention
// would then have no fused multiply-adds.
vec2 part_at(uint at) { return parts[at]; }

// Channels 2 pair and 2 pair + 1. n: 1 to MERGE_FEW states, `stride` apart, the first at `at` of parts; sink: of the
// head. The bits are the same in every kernel that calls it: its sums are not contracted to multiply-adds. All loads
// come before their first use.
vec2 merge_few(uint at, uint stride, uint n, uint pair, float sink, out float top, out float weights) {
	vec2 x[MERGE_FEW], state[MERGE_FEW];
	[[unroll]] for (uint i = 0; i < MERGE_FEW; i++) {
		const uint from = at + min(i, n - 1u) * stride;
		state[i] = part_at(from + PAIRS);
		x[i] = part_at(from + pair);
	}
	top = SINKS ? sink : NO_TOKEN;
	[[unroll]] for (uint i = 0; i < MERGE_FEW; i++) top = max(top, state[i].x);
	precise vec2 sum = vec2(0);
	precise float of_all = 0;
	if (SINKS) of_all = exp(sink - top);
	[[unroll]] for (uint i = 0; i < MERGE_FEW; i++) {
		const float w = i < n ? exp(state[i].x - top) : 0.0;
		of_all += w * state[i].y;
		sum += w * x[i];
	}
	weights = of_all;
	return of_all > 0.0 ? sum / of_all : vec2(of_all); // 0, or a NaN that must be kept
}
