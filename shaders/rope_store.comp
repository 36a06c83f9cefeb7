// Per row t and head: RMS norm of the head (FLAGS), rotation of channel pairs by table[t], then q in place and
// k, v as f16 words where at[t][kv head] says.
//
// dims     q (T, n_heads, head_dim), k, v (T, n_kv_heads, head_dim) f32; table (T, rotary_dim / 2, 2): cos, sin;
//          at (T, n_kv_heads, 2) word offsets, ~0: not stored; norm_q, norm_k (head_dim) f32
// grid     one workgroup per (row, head): row = x + z * row_stride; y: q heads, then k heads, then v heads
// FLAGS    1 pairs are (i, i + rotary_dim / 2), else (2i, 2i + 1); 2 norm q; 4 norm k
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

shared float head[HEAD_DIM];

void load_head(uint from, bool is_q) {
	float squares = 0.0;
	for (uint c = gl_LocalInvocationID.x; c < HEAD_DIM; c += gl_WorkGroupSize.x) {
		const float x = is_q ? q[KV_AT(0) + from + c] : k[KV_AT(3) + from + c];
		head[c] = x;
		squares += x * x;
	}
	if ((FLAGS & (is_q ? 2u : 4u)) != 0u) {
		const float scale = 1.0 / sqrt(workgroup_sum(squares) / float(HEAD_DIM) + p.eps);
		for (uint c = gl_LocalInvocationID.x; c < HEAD_DIM; c += gl_WorkGroupSize.x)
			head[c] *= scale * (is_q ? norm_q[KV_AT(7) + c] : norm_k[KV_AT(8) + c]);
	}
	barrier();
}

void rotate(uint row) {
	const uint half_dim = p.rotary_dim / 2u;
	for (uint i = gl_LocalInvocationID.x; i < half_dim; i += gl_WorkGroupSize.x) {
		const uint at = KV_AT(5) + (row * half_dim + i) * 2u;
		const float c = table[at], s = table[at + 1u];
		const uint a = (FLAGS & 1u) != 0u ? i : 2u * i, b = (FLAGS & 1u) != 0u ? i + half_dim : 2u * i + 1u;
		const float x = head[a], y = head[b];
		head[a] = x * c - y * s;
		head[b] = x * s + y * c;
	}
	barrier();
}

void main() {
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.z * p.row_stride;
	if (row >= p.rows) return;
	const uint h = gl_WorkGroupID.y;
	if (h < p.n_heads) {
		const uint from = (row * p.n_heads + h) * HEAD_DIM;
		load_head(from, true);
		rotate(row);
		for (uint c = gl_LocalInvocationID.x; c < HEAD_DIM; c += gl_WorkGroupSize.x) q[KV_AT(0) + from + c] = head[c];
	} else if (h < p.n_heads + p.n_kv_heads) {
		const uint kv = h - p.n_heads, from = (row * p.n_kv_heads + kv) * HEAD_DIM;
		load_head(from, false);
		rotate(row);
		const uint to = at_word[KV_AT(6) + (row * p.n_kv_heads + kv) * 2u];
		if (to == ~0u) return;
		for (uint w = gl_LocalInvocationID.x; w < HEAD_DIM / 2u; w += gl_WorkGroupSize.x)
			k_dst[KV_AT(1) + to + w * p.k_word_stride] = f16_pack(head[2u * w], head[2u * w + 1u]);
	} else {
		const uint kv = h - p.n_heads - p.n_kv_heads, from = KV_AT(4) + (row * p.n_kv_heads + kv) * HEAD_DIM;
		const uint to = at_word[KV_AT(6) + (row * p.n_kv_heads + kv) * 2u + 1u];
		if (to == ~0u) return;
		for (uint w = gl_LocalInvocationID.x; w < HEAD_DIM / 2u; w += gl_WorkGroupSize.x)
			v_dst[KV_AT(2) + to + w] = f16_pack(v[from + 2u * w], v[from + 2u * w + 1u]);
	}
}
