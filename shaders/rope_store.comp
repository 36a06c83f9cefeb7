// Per row t and head: RMS norm of the head (FLAGS), rotation of channel pairs by table[t], or back (FLAGS), weights of
// the norm before it or after it (FLAGS). q is changed in place; k, v go to at[t][kv head] as f16 words.
//
// dims     q (T, n_heads, head_dim), k, v (T, n_kv_heads, head_dim) f32; table (T, rotary_dim / 2, 2): cos, sin;
//          at (T, n_kv_heads, 2) word offsets, ~0: not stored; norm_q, norm_k (head_dim) f32
// grid     one workgroup per (row, head): row = x + z * row_stride; y: q heads, then k heads, then v heads
// FLAGS    ROPE_*
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/numeric.glsl"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 64u;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0u;
layout(push_constant) uniform Push { RopeStorePush p; };

layout(set = 0, binding = 0) restrict buffer Q { float q[]; };
layout(set = 0, binding = 1) writeonly buffer KDst { uint k_dst[]; }; // k_dst and v_dst may be one pool
layout(set = 0, binding = 2) writeonly buffer VDst { uint v_dst[]; };
layout(set = 0, binding = 3) restrict readonly buffer K { float k[]; };
layout(set = 0, binding = 4) restrict readonly buffer V { float v[]; };
layout(set = 0, binding = 5) restrict readonly buffer Table { float table[]; };
layout(set = 0, binding = 6) restrict readonly buffer At { uint at_word[]; };
layout(set = 0, binding = 7) restrict readonly buffer NormQ { float norm_q[]; };
layout(set = 0, binding = 8) restrict readonly buffer NormK { float norm_k[]; };

// Latent attention: k is a latent of k_dim channels, which is stored as it is, and v is the key that is rotated.
const bool OF_VALUES = (FLAGS & ROPE_OF_VALUES) != 0u;
const bool WEIGH_LAST = (FLAGS & ROPE_WEIGH_LAST) != 0u;

// Value of channel c before rotation, with the head norm; without its weights if these are applied last.
float plain_q(uint from, uint c, float scale) {
	const float x = q[KV_AT(0) + from + c];
	if ((FLAGS & ROPE_NORM_Q) == 0u) return x;
	return WEIGH_LAST ? x * scale : x * scale * norm_q[KV_AT(7) + c];
}
float plain_k(uint from, uint c, float scale) {
	const float x = OF_VALUES ? v[KV_AT(4) + from + c] : k[KV_AT(3) + from + c];
	if ((FLAGS & ROPE_NORM_K) == 0u) return x;
	return WEIGH_LAST ? x * scale : x * scale * norm_k[KV_AT(8) + c];
}
float weighed_q(uint c, float x) { return WEIGH_LAST && (FLAGS & ROPE_NORM_Q) != 0u ? x * norm_q[KV_AT(7) + c] : x; }
float weighed_k(uint c, float x) { return WEIGH_LAST && (FLAGS & ROPE_NORM_K) != 0u ? x * norm_k[KV_AT(8) + c] : x; }
float norm_scale(float squares) { return 1.0 / sqrt(workgroup_sum(squares) / float(HEAD_DIM) + p.eps); }

// Pair i of the rotated channels: its two channels, and cos, sin.
uvec2 pair_channels(uint i) {
	return p.first + ((FLAGS & ROPE_NEOX) != 0u ? uvec2(i, i + p.rotary_dim / 2u) : uvec2(2u * i, 2u * i + 1u));
}
vec2 pair_turn(uint row, uint i) {
	const uint at = KV_AT(5) + (row * (p.rotary_dim / 2u) + i) * 2u;
	return vec2(table[at], (FLAGS & ROPE_BACK) != 0u ? -table[at + 1u] : table[at + 1u]);
}
bool is_turned(uint c) { return c - p.first < p.rotary_dim; }
float rotated_k(uint row, uint from, uint c, float scale) {
	if (!is_turned(c)) return plain_k(from, c, scale);
	const uint half_dim = p.rotary_dim / 2u, of = c - p.first;
	const bool neox = (FLAGS & ROPE_NEOX) != 0u, second = neox ? of >= half_dim : (of & 1u) != 0u;
	const uint i = neox ? (second ? of - half_dim : of) : of / 2u;
	const uvec2 ch = pair_channels(i);
	const vec2 turn = pair_turn(row, i);
	const float x = plain_k(from, ch.x, scale), y = plain_k(from, ch.y, scale);
	return second ? x * turn.y + y * turn.x : x * turn.x - y * turn.y;
}

// In place: an invocation takes whole pairs, and all values that the reduction needs have been read.
void store_q(uint row, uint from) {
	float scale = 1.0;
	if ((FLAGS & ROPE_NORM_Q) != 0u) {
		float squares = 0.0;
		for (uint c = gl_LocalInvocationID.x; c < HEAD_DIM; c += gl_WorkGroupSize.x)
			squares += q[KV_AT(0) + from + c] * q[KV_AT(0) + from + c];
		scale = norm_scale(squares);
		for (uint i = gl_LocalInvocationID.x; i < HEAD_DIM - p.rotary_dim; i += gl_WorkGroupSize.x) {
			const uint c = i < p.first ? i : i + p.rotary_dim;
			q[KV_AT(0) + from + c] = weighed_q(c, plain_q(from, c, scale));
		}
	}
	for (uint i = gl_LocalInvocationID.x; i < p.rotary_dim / 2u; i += gl_WorkGroupSize.x) {
		const uvec2 ch = pair_channels(i);
		const vec2 turn = pair_turn(row, i);
		const float x = plain_q(from, ch.x, scale), y = plain_q(from, ch.y, scale);
		q[KV_AT(0) + from + ch.x] = weighed_q(ch.x, x * turn.x - y * turn.y);
		q[KV_AT(0) + from + ch.y] = weighed_q(ch.y, x * turn.y + y * turn.x);
	}
}

void store_k(uint row, uint from, uint to) {
	float scale = 1.0;
	if ((FLAGS & ROPE_NORM_K) != 0u) {
		float squares = 0.0;
		for (uint c = gl_LocalInvocationID.x; c < HEAD_DIM; c += gl_WorkGroupSize.x)
			squares += k[KV_AT(3) + from + c] * k[KV_AT(3) + from + c];
		scale = norm_scale(squares);
	}
	if (to == ~0u) return;
	for (uint w = gl_LocalInvocationID.x; w < HEAD_DIM / 2u; w += gl_WorkGroupSize.x) {
		const uint word = f16_pack(weighed_k(2u * w, rotated_k(row, from, 2u * w, scale)),
		                           weighed_k(2u * w + 1u, rotated_k(row, from, 2u * w + 1u, scale)));
		if (OF_VALUES) v_dst[KV_AT(2) + to + w] = word;
		else k_dst[KV_AT(1) + to + w * p.k_word_stride] = word;
	}
}

// What is not rotated.
void store_plain(uint from, uint to) {
	if (to == ~0u) return;
	for (uint w = gl_LocalInvocationID.x; w < (OF_VALUES ? p.k_dim : HEAD_DIM) / 2u; w += gl_WorkGroupSize.x) {
		const uint at = from + 2u * w;
		if (OF_VALUES)
			k_dst[KV_AT(1) + to + w * p.k_word_stride] = f16_pack(k[KV_AT(3) + at], k[KV_AT(3) + at + 1u]);
		else v_dst[KV_AT(2) + to + w] = f16_pack(v[KV_AT(4) + at], v[KV_AT(4) + at + 1u]);
	}
}

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.z * p.row_stride;
	if (row >= p.rows) return;
	const uint h = gl_WorkGroupID.y;
	if (h < p.n_heads) {
		store_q(row, (row * p.n_heads + h) * HEAD_DIM);
		return;
	}
	const bool is_v = h >= p.n_heads + p.n_kv_heads;
	const uint kv = h - p.n_heads - (is_v ? p.n_kv_heads : 0u);
	const uint from = (row * p.n_kv_heads + kv) * (OF_VALUES && !is_v ? p.k_dim : HEAD_DIM);
	const uint to = at_word[KV_AT(6) + (row * p.n_kv_heads + kv) * 2u + (is_v ? 1u : 0u)];
	if (is_v == OF_VALUES) store_k(row, from, to);
	else store_plain(from, to);
}
