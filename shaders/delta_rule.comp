// The gated delta rule: rows of a sequence go through the states of its heads in order, see op_state.h.
//
// With k and q divided by their lengths, q also by sqrt(K_DIM), for each column of a head's state S (K_DIM, v_dim):
//   delta = sigmoid(beta) * (v - decay * (k . S))
//   out   = decay * (q . S) + (q . k) * delta
//   S     = decay * S + k * delta
//   decay = exp(rate * softplus(alpha + shift))
// With DELTA_BY_CHANNEL decay is a number per row of S; S is then multiplied by it before the sums.
// Columns are independent of each other. A workgroup takes COLS of them; an invocation holds ROWS rows of one column in
// registers. Sums are added row by row, then over the invocations of a column in order. So a row's bits do not depend
// on how a sequence is cut into dispatches.
//
// dims     out (rows, n_heads, v_dim) f32; x f32: q, k (rows, n_key_heads, K_DIM), v (rows, n_heads, v_dim), row by row
//          or apart; beta, alpha (rows, n_heads) f32; rate, shift (n_heads) f32; by channel: alpha (rows, n_heads,
//          K_DIM), shift (n_heads, K_DIM); work (items) StateWork; from, to f32 words
// grid     x: blocks of columns, y: heads, z: items; COLS * K_DIM / ROWS invocations
// FLAGS    DELTA_BY_CHANNEL
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/flags.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint K_DIM = 128;
layout(constant_id = SPEC_STATE_ROWS) const uint ROWS = 16;
layout(constant_id = SPEC_STATE_COLS) const uint COLS = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
const uint SLICES = K_DIM / ROWS; // invocations that share a column
const bool BY_CHANNEL = (FLAGS & DELTA_BY_CHANNEL) != 0;
layout(push_constant) uniform Push { DeltaRulePush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Beta { float beta[]; };
layout(std430, binding = 3) readonly buffer Alpha { float alpha[]; };
layout(std430, binding = 4) readonly buffer Rate { float rate[]; };
layout(std430, binding = 5) readonly buffer Shift { float shift[]; };
layout(std430, binding = 6) readonly buffer Work { uint work[]; };
layout(std430, binding = 7) readonly buffer From { float from[]; };
layout(std430, binding = 8) writeonly buffer To { float to[]; }; // may be the same memory as From

// Double buffers for even and odd rows: one invocation may be a barrier ahead of another.
shared float key[2 * K_DIM], query[2 * K_DIM];
shared float kept[BY_CHANNEL ? 2 * K_DIM : 1];                        // decays
shared float key_sum[2 * SLICES * COLS], query_sum[2 * SLICES * COLS]; // k . S, q . S
shared vec3 lengths[2 * SLICES];                                      // k . k, q . q, q . k

#include "lib/softplus.glsl"

void main() {
	const uint lane = gl_LocalInvocationID.x, slice = lane / COLS, head = gl_WorkGroupID.y;
	const uint col = gl_WorkGroupID.x * COLS + lane % COLS, first = slice * ROWS;
	const bool inside = col < p.v_dim;
	const uint item = KV_AT(6) + gl_WorkGroupID.z * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	const uint key_head = p.tiled != 0 ? head % p.n_key_heads : head / (p.n_heads / p.n_key_heads);
	const uint state_at = (head * K_DIM + first) * p.v_dim + col;
	const float rate_of = rate[KV_AT(4) + head], shift_of = BY_CHANNEL ? 0.0 : shift[KV_AT(5) + head];

	float s[ROWS];
	for (uint i = 0; i < ROWS; ++i) {
		s[i] = 0.0;
		if (inside && from_at != STATE_ZERO) s[i] = from[KV_AT(7) + from_at + state_at + i * p.v_dim];
	}
	for (uint t = 0; t < n; ++t) {
		const uint at = KV_AT(1) + (row + t) * p.key_stride + key_head * K_DIM, odd = t & 1;
		const uint gate = (row + t) * p.n_heads + head;
		for (uint i = lane; i < K_DIM; i += gl_WorkGroupSize.x) {
			query[odd * K_DIM + i] = x[at + i];
			key[odd * K_DIM + i] = x[at + p.k_at + i];
			if (BY_CHANNEL)
				kept[odd * K_DIM + i] =
				    exp(rate_of * softplus(alpha[KV_AT(3) + gate * K_DIM + i] + shift[KV_AT(5) + head * K_DIM + i]));
		}
		const float v = inside ? x[KV_AT(1) + p.v_at + (row + t) * p.value_stride + head * p.v_dim + col] : 0.0;
		const float share = 1.0 / (1.0 + exp(-beta[KV_AT(2) + gate]));
		float decay = 1.0;
		if (!BY_CHANNEL) decay = exp(rate_of * softplus(alpha[KV_AT(3) + gate] + shift_of));
		barrier();
		float k_s = 0.0, q_s = 0.0;
		vec3 own = vec3(0.0);
		for (uint i = 0; i < ROWS; ++i) {
			const float k = key[odd * K_DIM + first + i], q = query[odd * K_DIM + first + i];
			if (BY_CHANNEL) s[i] *= kept[odd * K_DIM + first + i];
			k_s += k * s[i];
			q_s += q * s[i];
			own += vec3(k * k, q * q, q * k);
		}
		key_sum[odd * SLICES * COLS + lane] = k_s;
		query_sum[odd * SLICES * COLS + lane] = q_s;
		if (lane % COLS == 0) lengths[odd * SLICES + slice] = own;
		barrier();
		k_s = 0.0;
		q_s = 0.0;
		own = vec3(0.0);
		for (uint i = 0; i < SLICES; ++i) {
			k_s += key_sum[(odd * SLICES + i) * COLS + lane % COLS];
			q_s += query_sum[(odd * SLICES + i) * COLS + lane % COLS];
			own += lengths[odd * SLICES + i];
		}
		const float of_k = 1.0 / sqrt(own.x + p.eps), of_q = p.scale / sqrt(own.y + p.eps);
		const float delta = share * (v - decay * (k_s * of_k));
		if (inside && slice == 0)
			out_x[KV_AT(0) + gate * p.v_dim + col] = decay * (q_s * of_q) + own.z * of_k * of_q * delta;
		const float change = of_k * delta;
		for (uint i = 0; i < ROWS; ++i) s[i] = decay * s[i] + key[odd * K_DIM + first + i] * change;
	}
	if (!inside) return;
	for (uint i = 0; i < ROWS; ++i) to[KV_AT(8) + to_at + state_at + i * p.v_dim] = s[i];
}
