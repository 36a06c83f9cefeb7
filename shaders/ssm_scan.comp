// The scan of a state-space layer (Mamba-2): rows of a sequence go through the states of its heads in order, see
// op_state.h.
//
// For each column of a head's state S (K_DIM, v_dim):
//   S   = exp(rate * step) * S + B * (step * value)
//   out = C . S + skip * value
//   step = softplus(step + shift)
// Columns are independent of each other. A workgroup takes COLS of them; an invocation holds ROWS rows of one column in
// registers. Products with C are added row by row, then over the invocations of a column in order. So a row's bits do
// not depend on how a sequence is cut into dispatches.
//
// dims     out (rows, n_heads, v_dim) f32; x (rows, channels) f32: values (n_heads, v_dim), B, C (n_groups, K_DIM);
//          step (rows, n_heads) f32; rate, shift, skip (n_heads) f32; work (items) StateWork; from, to f32 words
// grid     x: blocks of columns, y: heads, z: items; COLS * K_DIM / ROWS invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint K_DIM = 128;
layout(constant_id = SPEC_STATE_ROWS) const uint ROWS = 16;
layout(constant_id = SPEC_STATE_COLS) const uint COLS = 32;
const uint SLICES = K_DIM / ROWS; // invocations that share a column
layout(push_constant) uniform Push { SsmScanPush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Step { float step_of[]; };
layout(std430, binding = 3) readonly buffer Rate { float rate[]; };
layout(std430, binding = 4) readonly buffer Shift { float shift[]; };
layout(std430, binding = 5) readonly buffer Skip { float skip[]; };
layout(std430, binding = 6) readonly buffer Work { uint work[]; };
layout(std430, binding = 7) readonly buffer From { float from[]; };
layout(std430, binding = 8) writeonly buffer To { float to[]; }; // may be the same memory as From

// Double buffers for even and odd rows: one invocation may be a barrier ahead of another.
shared float written[2 * K_DIM], read[2 * K_DIM]; // B, C
shared float sums[2 * SLICES * COLS];             // C . S

#include "lib/softplus.glsl"

void main() {
	const uint lane = gl_LocalInvocationID.x, slice = lane / COLS, head = gl_WorkGroupID.y;
	const uint col = gl_WorkGroupID.x * COLS + lane % COLS, first = slice * ROWS;
	const bool inside = col < p.v_dim;
	const uint item = KV_AT(6) + gl_WorkGroupID.z * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	const uint values = p.n_heads * p.v_dim, group = head / (p.n_heads / p.n_groups);
	const uint state_at = (head * K_DIM + first) * p.v_dim + col;
	const float rate_of = rate[KV_AT(3) + head], shift_of = shift[KV_AT(4) + head], skip_of = skip[KV_AT(5) + head];

	float s[ROWS];
	for (uint i = 0; i < ROWS; ++i) {
		s[i] = 0.0;
		if (inside && from_at != STATE_ZERO) s[i] = from[KV_AT(7) + from_at + state_at + i * p.v_dim];
	}
	for (uint t = 0; t < n; ++t) {
		const uint at = KV_AT(1) + (row + t) * p.channels, odd = t & 1;
		for (uint i = lane; i < K_DIM; i += gl_WorkGroupSize.x) {
			written[odd * K_DIM + i] = x[at + values + group * K_DIM + i];
			read[odd * K_DIM + i] = x[at + values + (p.n_groups + group) * K_DIM + i];
		}
		const float v = inside ? x[at + head * p.v_dim + col] : 0.0;
		const uint gate = (row + t) * p.n_heads + head;
		const float span = softplus(step_of[KV_AT(2) + gate] + shift_of), decay = exp(rate_of * span);
		const float change = span * v;
		barrier();
		float sum = 0.0;
		for (uint i = 0; i < ROWS; ++i) {
			s[i] = decay * s[i] + written[odd * K_DIM + first + i] * change;
			sum += read[odd * K_DIM + first + i] * s[i];
		}
		sums[odd * SLICES * COLS + lane] = sum;
		barrier();
		if (inside && slice == 0) {
			sum = 0.0;
			for (uint i = 0; i < SLICES; ++i) sum += sums[(odd * SLICES + i) * COLS + lane % COLS];
			out_x[KV_AT(0) + gate * p.v_dim + col] = sum + skip_of * v;
		}
	}
	if (!inside) return;
	for (uint i = 0; i < ROWS; ++i) to[KV_AT(8) + to_at + state_at + i * p.v_dim] = s[i];
}
