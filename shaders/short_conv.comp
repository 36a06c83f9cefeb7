// out[t][c] = f(bias[c] + sum_j w[c][j] * x[t - (TAPS - 1) + j][c]): a causal convolution of each channel over TAPS
// tokens; f is silu or nothing. With gates (CONV_GATES) the weights of a channel's sum are softmax_j(gate[t - (TAPS -
// 1) + j][c] + w[j][c]). With mixes (CONV_MIXES, two taps): out[i][t][c] = x[t][c] + w[i][c] * (x[t - 1][c] - x[t][c]).
//
// The TAPS - 1 rows of x before an item's first row are its state, the oldest first, then those of gates. The item's
// latest rows replace them. A workgroup takes TILE rows, unless the state is replaced in its place: then the first one
// takes all, so that no other writes what it reads.
//
// dims     out, x (rows, channels) f32; w (channels, TAPS), of gates (TAPS, channels), f32; bias (channels) f32, or
//          gates (rows, channels) f32; without either, w is bound in their place; of mixes out (mixes, rows, channels),
//          w (mixes, channels); work (items) StateWork; from, to f32 words
// grid     x: channels, y: items, z: blocks of TILE rows
// FLAGS    CONV_*
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_TAPS) const uint TAPS = 4;
layout(constant_id = SPEC_TILE) const uint TILE = 16; // 0: all
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { ShortConvPush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer W { float w[]; };
layout(std430, binding = 3) readonly buffer Work { uint work[]; };
layout(std430, binding = 4) readonly buffer From { float from[]; };
layout(std430, binding = 5) writeonly buffer To { float to[]; }; // may be the same memory as From
layout(std430, binding = 6) readonly buffer Bias { float bias[]; }; // or gates
const bool GATES = (FLAGS & CONV_GATES) != 0, MIXES = (FLAGS & CONV_MIXES) != 0;

void main() {
	const uint c = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
	if (c >= p.channels) return;
	const uint item = KV_AT(3) + gl_WorkGroupID.y * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	const bool whole = TILE == 0 || from_at == to_at;
	const uint first = gl_WorkGroupID.z * TILE, end = whole || n - first < TILE ? n : first + TILE;
	if (first > 0 && (whole || first >= n)) return;
	float weight[TAPS], seen[TAPS], gate[TAPS]; // x and gates of the current row, last, and of those before
	const uint gates_from = (TAPS - 1) * p.channels;
	for (uint j = 0; j < TAPS; ++j) {
		if (!MIXES) weight[j] = w[KV_AT(2) + (GATES ? j * p.channels + c : c * TAPS + j)];
		seen[j] = gate[j] = 0.0;
		if (TILE != 0 && first + j >= TAPS) {
			const uint at = (row + first + j - TAPS) * p.channels + c;
			seen[j] = x[KV_AT(1) + at];
			if (GATES) gate[j] = bias[KV_AT(6) + at];
		} else if (j > 0 && from_at != STATE_ZERO) {
			const uint at = KV_AT(4) + from_at + (first + j - 1) * p.channels + c;
			seen[j] = from[at];
			if (GATES) gate[j] = from[at + gates_from];
		}
	}
	const float shift = (FLAGS & CONV_BIAS) != 0 ? bias[KV_AT(6) + c] : 0.0;
	for (uint t = first; t < end; ++t) {
		const uint at = (row + t) * p.channels + c;
		if (GATES) {
			for (uint j = 0; j + 1 < TAPS; ++j) seen[j] = seen[j + 1], gate[j] = gate[j + 1];
			seen[TAPS - 1] = x[KV_AT(1) + at], gate[TAPS - 1] = bias[KV_AT(6) + at];
			float most = gate[0] + weight[0], shares = 0.0, pooled = 0.0;
			for (uint j = 1; j < TAPS; ++j) most = max(most, gate[j] + weight[j]);
			for (uint j = 0; j < TAPS; ++j) {
				const float share = exp(gate[j] + weight[j] - most);
				shares += share, pooled += share * seen[j];
			}
			out_x[KV_AT(0) + at] = pooled / shares;
			continue;
		}
		if (MIXES) {
			const float before = seen[TAPS - 1], now = x[KV_AT(1) + at];
			for (uint i = 0; i < p.mixes; ++i)
				out_x[KV_AT(0) + i * p.plane + at] = now + w[KV_AT(2) + i * p.channels + c] * (before - now);
			seen[TAPS - 1] = now;
			continue;
		}
		float sum = 0.0;
		for (uint j = 0; j + 1 < TAPS; ++j) {
			seen[j] = seen[j + 1];
			sum += weight[j] * seen[j];
		}
		seen[TAPS - 1] = x[KV_AT(1) + at];
		sum += weight[TAPS - 1] * seen[TAPS - 1];
		if ((FLAGS & CONV_BIAS) != 0) sum += shift;
		out_x[KV_AT(0) + at] = (FLAGS & CONV_SILU) != 0 ? sum / (1.0 + exp(-sum)) : sum;
	}
	if (end < n) return;
	for (uint j = 1; j < TAPS; ++j) {
		const uint at = KV_AT(5) + to_at + (j - 1) * p.channels + c;
		to[at] = seen[j];
		if (GATES) to[at + gates_from] = gate[j];
	}
}
