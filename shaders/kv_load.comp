// Copies f16 keys and values from pages, at at[t][kv head], to rows first .. first + n - 1 of k, v. The inverse of
// kv_store.
//
// dims     k, v (n_kv_heads, t_cap, words of K, V) u32; at (n, n_kv_heads, 2) word offsets, ~0: the row is left
//          unchanged
// grid     x: n * words / LOCAL_X, y: kv head, z: 0 for K, 1 for V
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { KvStorePush p; };

layout(set = 0, binding = 0) restrict writeonly buffer K { uint k[]; };
layout(set = 0, binding = 1) restrict writeonly buffer V { uint v[]; };
layout(set = 0, binding = 2) readonly buffer KSrc { uint k_src[]; }; // k_src and v_src may be one pool
layout(set = 0, binding = 3) readonly buffer VSrc { uint v_src[]; };
layout(set = 0, binding = 4) restrict readonly buffer At { uint at_word[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x, kv = gl_WorkGroupID.y;
	const bool is_k = gl_WorkGroupID.z == 0u;
	const uint words = is_k ? p.k_words : p.v_words;
	if (i >= p.n * words) return;
	const uint t = i / words, w = i % words;
	const uint from = at_word[KV_AT(4) + (t * p.n_kv_heads + kv) * 2u + gl_WorkGroupID.z];
	const uint to = (kv * p.t_cap + p.first + t) * words + w;
	if (from == ~0u) return;
	if (is_k) k[KV_AT(0) + to] = k_src[KV_AT(2) + from + w * p.k_word_stride];
	else v[KV_AT(1) + to] = v_src[KV_AT(3) + from + w];
}
