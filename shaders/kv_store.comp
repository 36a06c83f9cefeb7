// Copies prompt tokens first .. first + n - 1 of k, v, already in f16, to the pages, at at[t][kv head].
//
// dims     k, v (n_kv_heads, t_cap, words of K, V) u32; at (n, n_kv_heads, 2) word offsets, ~0: not stored
// grid     x: n / LOCAL_X, y: kv head, z: words of a head, first K's, then V's
// K pages are [word][token]: neighbouring lanes take neighbouring tokens of one word, so their writes are adjacent. V
// pages are [token][word]: neighbouring lanes take neighbouring words.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 64u;
layout(push_constant) uniform Push { KvStorePush p; };

layout(set = 0, binding = 0) writeonly buffer KDst { uint k_dst[]; }; // k_dst and v_dst may be one pool
layout(set = 0, binding = 1) writeonly buffer VDst { uint v_dst[]; };
layout(set = 0, binding = 2) restrict readonly buffer K { uint k[]; };
layout(set = 0, binding = 3) restrict readonly buffer V { uint v[]; };
layout(set = 0, binding = 4) restrict readonly buffer At { uint at_word[]; };

layout(constant_id = SPEC_ROPE_DIM) const uint ROPE_DIM = 0u;
const uint K_WORDS = HEAD_DIM / 2u, V_WORDS = ROPE_DIM == 0u ? K_WORDS : ROPE_DIM / 2u; // words of a head

void main() {
	const uint kv = gl_WorkGroupID.y, z = gl_WorkGroupID.z;
	const bool is_k = z < K_WORDS;
	const uint words = is_k ? K_WORDS : V_WORDS;
	uint t = gl_GlobalInvocationID.x, w = z;
	if (!is_k || p.k_word_stride == 1u) {
		const uint lane =
		    (gl_WorkGroupID.x * words + (is_k ? z : z - K_WORDS)) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
		t = lane / words;
		w = lane % words;
	}
	if (t >= p.n) return;
	const uint to = at_word[KV_AT(4) + (t * p.n_kv_heads + kv) * 2u + (is_k ? 0u : 1u)];
	const uint from = (kv * p.t_cap + p.first + t) * words + w;
	if (to == ~0u) return;
	if (is_k) k_dst[KV_AT(0) + to + w * p.k_word_stride] = k[KV_AT(2) + from];
	else v_dst[KV_AT(1) + to + w] = v[KV_AT(3) + from];
}
