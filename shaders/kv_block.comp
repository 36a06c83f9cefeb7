// Parameters over all tokens that are compressed together: (scale, zero) per channel of keys, channel factors sqrt(max
// |x|) of values (ZipCache Algorithm 1).
//
//   0 words pool words, written | 1 k, 2 v (n_kv_heads, t_cap, head_dim) f16 as words | 3 sources (n) u32 rows of k, v
//   4 work (n_work, BLOCK_WORDS) u32, BlockWork | 5 balance u32 words, balancers (n_kv_heads, head_dim) f16, with
//   PACK_K_BALANCE
// Grid: x = 32 words of a head, y = kv head, z = work item. LOCAL_X / 32 invocations share a word's tokens.
// FLAGS: PACK_K_BALANCE.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
#include "lib/quant.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_K_BITS) const uint BITS = 2;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { KvBlockPush p; };
layout(std430, binding = 0) restrict buffer Words { uint words[]; };
layout(std430, binding = 1) readonly restrict buffer K { uint k[]; };
layout(std430, binding = 2) readonly restrict buffer V { uint v[]; };
layout(std430, binding = 3) readonly restrict buffer Sources { uint sources[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const BlockWork FIELD = BlockWork(WORDS_6);
layout(std430, binding = 5) readonly restrict buffer Balance { uint balance[]; };

const uint SLICES = LOCAL_X / 32, AHEAD = 8; // loads in flight
shared vec4 k_s[LOCAL_X]; // least x, y, largest x, y
shared vec2 v_s[LOCAL_X]; // largest |x|, |y|

uint factor_bits(float most) {
	const uint f = f16_bits(sqrt(most));
	return f == 0 ? 0x3c00u : f;
}

void main() {
	const uint i = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, pairs = p.head_dim / 2;
	const uint w = gl_WorkGroupID.x * 32 + i % 32, pair = min(w, pairs - 1),
	           item = KV_AT(4) + gl_WorkGroupID.z * BLOCK_WORDS;
	const uint src = KV_AT(3) + work[item + FIELD.src], n = work[item + FIELD.n], head = work[item + FIELD.head],
	           k_at = work[item + FIELD.k_params], v_at = work[item + FIELD.v_factors];
	if (head != ~0u && head != h) return; // the item is of another head; uniform over the workgroup
	vec2 by = vec2(1);
	if ((FLAGS & PACK_K_BALANCE) != 0)
		by = unpackHalf2x16(balance[KV_AT(5) + work[item + FIELD.balance] + h * pairs + pair]);
	vec2 lo = vec2(3.4e38), hi = vec2(-3.4e38), most = vec2(0);
	for (uint first = i / 32; first < n; first += SLICES * AHEAD) {
		uint at[AHEAD];
		[[unroll]] for (uint j = 0; j < AHEAD; j++)
			at[j] = (h * p.t_cap + sources[src + min(first + j * SLICES, n - 1)]) * pairs + pair;
		if (k_at != ~0u) [[unroll]] for (uint j = 0; j < AHEAD; j++) {
			const vec2 x = unpackHalf2x16(k[KV_AT(1) + at[j]]) * by;
			lo = min(lo, x), hi = max(hi, x);
		}
		if (v_at != ~0u) [[unroll]]
			for (uint j = 0; j < AHEAD; j++) most = max(most, abs(unpackHalf2x16(v[KV_AT(2) + at[j]])));
	}
	k_s[i] = vec4(lo, hi);
	v_s[i] = most;
	barrier();
	if (i >= 32 || w >= pairs) return;
	for (uint j = 32; j < LOCAL_X; j += 32)
		lo = min(lo, k_s[i + j].xy), hi = max(hi, k_s[i + j].zw), most = max(most, v_s[i + j]);
	if (k_at != ~0u) {
		const uint at = KV_AT(0) + k_at + kv_channel_param(h, 2 * w, p.head_dim);
		words[at] = param_word(plain_params(lo.x, hi.x, BITS), BITS, 0, 1);
		words[at + 1] = param_word(plain_params(lo.y, hi.y, BITS), BITS, 0, 1);
	}
	if (v_at != ~0u)
		words[KV_AT(0) + v_at + kv_factor_word(h, 2 * w, p.head_dim)] = factor_bits(most.x) | factor_bits(most.y) << 16;
}
