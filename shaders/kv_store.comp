// Prompt tokens first .. first + n - 1 of k, v, which are f16 already, to the pages where at[t][kv head] says.
//
// dims     k, v (n_kv_heads, t_cap, head_words) u32; at (n, n_kv_heads, 2) word offsets, ~0: not stored
// grid     x: n * head_words / LOCAL_X, y: kv head, z: 0 for K, 1 for V
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { KvStorePush p; };

layout(set = 0, binding = 0) writeonly buffer KDst { uint k_dst[]; }; // k_dst and v_dst may be one pool
layout(set = 0, binding = 1) writeonly buffer VDst { uint v_dst[]; };
layout(set = 0, binding = 2) restrict readonly buffer K { uint k[]; };
layout(set = 0, binding = 3) restrict readonly buffer V { uint v[]; };
layout(set = 0, binding = 4) restrict readonly buffer At { uint at_word[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x, kv = gl_WorkGroupID.y;
	if (i >= p.n * p.head_words) return;
	// K pages are [word][token]: neighbouring lanes take neighbouring tokens, so that what is written lies together
	const bool by_token = gl_WorkGroupID.z == 0u && p.k_word_stride != 1u;
	const uint t = by_token ? i % p.n : i / p.head_words, w = by_token ? i / p.n : i % p.head_words;
	const bool is_k = gl_WorkGroupID.z == 0u;
	const uint from = (kv * p.t_cap + p.first + t) * p.head_words + w;
	const uint to = at_word[KV_AT(4) + (t * p.n_kv_heads + kv) * 2u + gl_WorkGroupID.z];
	if (to == ~0u) return;
	if (is_k) k_dst[KV_AT(0) + to + w * p.k_word_stride] = k[KV_AT(2) + from];
	else v_dst[KV_AT(1) + to + w] = v[KV_AT(3) + from];
}
