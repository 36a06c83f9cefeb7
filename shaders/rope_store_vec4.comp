// rope_store.comp four channels at a time, for views at multiples of 16 bytes.
//
// dims     as rope_store.comp; HEAD_DIM and rotary_dim are multiples of 4, of 8 where pairs are (i, i + rotary_dim / 2)
// bindings as rope_store.comp, and 9: q once more, for reading
// grid     as rope_store.comp
// builds   storage buffers; TEXELS: for software drivers
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/numeric.glsl"
#include "lib/input.glsl"

layout(local_size_x_id = SPEC_LOCAL_X) in;
#include "lib/reduce.glsl"
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 64u;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0u;
layout(push_constant) uniform Push { RopeStorePush p; };

layout(set = 0, binding = 0) writeonly buffer Q { vec4 q[]; };
layout(set = 0, binding = 1) writeonly buffer KDst { uint k_dst[]; }; // k_dst and v_dst may be one pool
layout(set = 0, binding = 2) writeonly buffer VDst { uint v_dst[]; };
layout(set = 0, binding = 6) restrict readonly buffer At { uint at_word[]; };
INPUT(3, restrict readonly, K, k);
INPUT(4, restrict readonly, V, v);
INPUT(5, restrict readonly, Table, table);
INPUT(7, restrict readonly, NormQ, norm_q);
INPUT(8, restrict readonly, NormK, norm_k);
INPUT(9, readonly, QIn, q_in);

const uint QUADS = HEAD_DIM / 4u;
const bool NEOX = (FLAGS & ROPE_NEOX) != 0u, WEIGH_LAST = (FLAGS & ROPE_WEIGH_LAST) != 0u;

bool has_norm(bool is_q) { return (FLAGS & (is_q ? ROPE_NORM_Q : ROPE_NORM_K)) != 0u; }
vec4 weights(bool is_q, uint c) {
	return is_q ? VEC4_AT(norm_q, KV_AT(7) / 4u + c) : VEC4_AT(norm_k, KV_AT(8) / 4u + c);
}
// Four channels before rotation, with the head norm; without its weights if these are applied last.
vec4 plain(bool is_q, uint from, uint c, float scale) {
	const vec4 x = is_q ? VEC4_AT(q_in, KV_AT(9) / 4u + from + c) : VEC4_AT(k, KV_AT(3) / 4u + from + c);
	if (!has_norm(is_q)) return x;
	return WEIGH_LAST ? x * scale : x * scale * weights(is_q, c);
}
float head_scale(bool is_q, uint from) {
	if (!has_norm(is_q)) return 1.0;
	vec4 squares = vec4(0.0);
	for (uint c = gl_LocalInvocationID.x; c < QUADS; c += gl_WorkGroupSize.x) {
		const vec4 x = is_q ? VEC4_AT(q_in, KV_AT(9) / 4u + from + c) : VEC4_AT(k, KV_AT(3) / 4u + from + c);
		squares += x * x;
	}
	return 1.0 / sqrt(workgroup_sum(dot(squares, vec4(1.0))) / float(HEAD_DIM) + p.eps);
}

// Quads c and c + half_quads (pairs across halves) after rotation.
void turn_halves(bool is_q, uint row, uint from, uint c, float scale, out vec4 low, out vec4 high) {
	const uint half_quads = p.rotary_dim / 8u, at = KV_AT(5) / 4u + (row * half_quads + c) * 2u;
	const vec4 x = plain(is_q, from, c, scale), y = plain(is_q, from, c + half_quads, scale);
	const vec4 first = VEC4_AT(table, at), second = VEC4_AT(table, at + 1u); // (cos, sin) of two pairs each
	const vec4 cos4 = vec4(first.xz, second.xz), sin4 = vec4(first.yw, second.yw);
	low = x * cos4 - y * sin4;
	high = x * sin4 + y * cos4;
}
// Quad c (two neighbouring pairs) after rotation.
vec4 turn_neighbours(bool is_q, uint row, uint from, uint c, float scale) {
	const vec4 x = plain(is_q, from, c, scale), t = VEC4_AT(table, KV_AT(5) / 4u + row * (p.rotary_dim / 4u) + c);
	return vec4(x.x * t.x - x.y * t.y, x.x * t.y + x.y * t.x, x.z * t.z - x.w * t.w, x.z * t.w + x.w * t.z);
}

void put_k(uint to, uint c, vec4 x) {
	k_dst[KV_AT(1) + to + 2u * c * p.k_word_stride] = f16_pack(x.x, x.y);
	k_dst[KV_AT(1) + to + (2u * c + 1u) * p.k_word_stride] = f16_pack(x.z, x.w);
}
void put(bool is_q, uint from, uint to, uint c, vec4 x) {
	if (WEIGH_LAST && has_norm(is_q)) x *= weights(is_q, c);
	if (is_q) q[KV_AT(0) / 4u + from + c] = x;
	else put_k(to, c, x);
}

// q is changed in place: an invocation takes whole pairs, and all values that the reduction needs have been read.
void head(bool is_q, uint row, uint from, uint to) {
	const float scale = head_scale(is_q, from);
	const uint turned = p.rotary_dim / 4u, units = NEOX ? turned / 2u : turned;
	for (uint c = gl_LocalInvocationID.x; c < units; c += gl_WorkGroupSize.x) {
		if (NEOX) {
			vec4 low, high;
			turn_halves(is_q, row, from, c, scale, low, high);
			put(is_q, from, to, c, low);
			put(is_q, from, to, c + units, high);
		} else {
			put(is_q, from, to, c, turn_neighbours(is_q, row, from, c, scale));
		}
	}
	if (is_q && !has_norm(is_q)) return; // the other channels stay as they are
	for (uint c = turned + gl_LocalInvocationID.x; c < QUADS; c += gl_WorkGroupSize.x)
		put(is_q, from, to, c, plain(is_q, from, c, scale));
}

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.z * p.row_stride;
	if (row >= p.rows) return;
	const uint h = gl_WorkGroupID.y;
	if (h < p.n_heads) {
		head(true, row, (row * p.n_heads + h) * QUADS, 0u);
		return;
	}
	const bool is_v = h >= p.n_heads + p.n_kv_heads;
	const uint kv = h - p.n_heads - (is_v ? p.n_kv_heads : 0u), from = (row * p.n_kv_heads + kv) * QUADS;
	const uint to = at_word[KV_AT(6) + (row * p.n_kv_heads + kv) * 2u + (is_v ? 1u : 0u)];
	if (to == ~0u) return; // uniform over the workgroup, as the reduction in head() requires
	if (!is_v) {
		head(false, row, from, to);
		return;
	}
	for (uint c = gl_LocalInvocationID.x; c < QUADS; c += gl_WorkGroupSize.x) {
		const vec4 x = VEC4_AT(v, KV_AT(4) / 4u + from + c);
		v_dst[KV_AT(2) + to + 2u * c] = f16_pack(x.x, x.y);
		v_dst[KV_AT(2) + to + 2u * c + 1u] = f16_pack(x.z, x.w);
	}
}
