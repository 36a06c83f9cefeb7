// The selective scan of a state-space layer (Mamba 1): rows of a sequence go through the states of its channels in
// order, see op_state.h.
//
// For each channel's state S (K_DIM):
//   S[k] = exp(rate[k] * step) * S[k] + b[k] * (step * x)
//   out  = c . S + skip * x
//   step = softplus(step + shift)
// An invocation has one channel and its state in registers. b and c are the same for all of a workgroup, so their loads
// are scalar or broadcast. The next row's x and step are loaded while a row is computed.
// Order of sums: each component of the quads, quad by quad; x + y and z + w. So a row's bits do not depend on how a
// sequence is cut into dispatches.
//
// dims     out, x, step (rows, channels) f32; b, c (rows, K_DIM) f32; rate (channels, K_DIM) f32; shift, skip
//          (channels) f32; work (items) StateWork; from, to f32 words, a state is (K_DIM, channels)
// grid     x: blocks of channels, y: items
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint K_DIM = 16;
layout(push_constant) uniform Push { SelectiveScanPush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Step { float step_of[]; };
layout(std430, binding = 3) readonly buffer B { float b[]; };
layout(std430, binding = 4) readonly buffer C { float c[]; };
layout(std430, binding = 5) readonly buffer Rate { float rate[]; };
layout(std430, binding = 6) readonly buffer Shift { float shift[]; };
layout(std430, binding = 7) readonly buffer Skip { float skip[]; };
layout(std430, binding = 8) readonly buffer Work { uint work[]; };
layout(std430, binding = 9) readonly buffer From { float from[]; };
layout(std430, binding = 10) writeonly buffer To { float to[]; }; // may be the same memory as From

#include "lib/softplus.glsl"

const uint QUADS = K_DIM / 4u;

void main() {
	const uint channel = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
	if (channel >= p.channels) return;
	const uint item = KV_AT(8) + gl_WorkGroupID.y * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	vec4 state[QUADS], rates[QUADS];
	[[unroll]] for (uint i = 0u; i < QUADS; ++i)
		[[unroll]] for (uint j = 0u; j < 4u; ++j) {
			const uint k = i * 4u + j;
			rates[i][j] = rate[KV_AT(5) + channel * K_DIM + k];
			state[i][j] = from_at == STATE_ZERO ? 0.0 : from[KV_AT(9) + from_at + k * p.channels + channel];
		}
	const float shift_of = shift[KV_AT(6) + channel], skip_of = skip[KV_AT(7) + channel];
	uint at = row * p.channels + channel, keys = row * K_DIM;
	float next_x = 0.0, next_step = 0.0;
	if (n > 0u) next_x = x[KV_AT(1) + at], next_step = step_of[KV_AT(2) + at];
	[[dont_unroll]] for (uint t = 0u; t < n; ++t) {
		const float value = next_x, span = softplus(next_step + shift_of), change = span * value;
		const uint here = at, key = keys;
		if (t + 1u < n) {
			at += p.channels, keys += K_DIM;
			next_x = x[KV_AT(1) + at], next_step = step_of[KV_AT(2) + at];
		}
		vec4 sum = vec4(0);
		[[unroll]] for (uint i = 0u; i < QUADS; ++i) {
			const uint b_at = KV_AT(3) + key + i * 4u, c_at = KV_AT(4) + key + i * 4u;
			const vec4 written = vec4(b[b_at], b[b_at + 1u], b[b_at + 2u], b[b_at + 3u]),
			           read = vec4(c[c_at], c[c_at + 1u], c[c_at + 2u], c[c_at + 3u]);
			state[i] = exp(rates[i] * span) * state[i] + written * change;
			sum += read * state[i];
		}
		out_x[KV_AT(0) + here] = (sum.x + sum.y) + (sum.z + sum.w) + skip_of * value;
	}
	[[unroll]] for (uint i = 0u; i < QUADS; ++i)
		[[unroll]] for (uint j = 0u; j < 4u; ++j)
			to[KV_AT(10) + to_at + (i * 4u + j) * p.channels + channel] = state[i][j];
}
