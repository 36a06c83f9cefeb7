// f16 values of a whole page -> codes with (scale, zero) in bytes per token and run of GROUP channels of a kv head.
//
//   0 codes pool words, written, [kv head][token][word] in a page
//   1 params pool words, written: bytes [run][token], then the largest scale and |zero| that they are relative to
//   2 x (n_kv_heads, t_cap, HEAD_DIM) f16 as words | 3 sources (n) u32 rows of x
//   4 work (n_work, PACK_WORDS) u32, PackWork
// Grid: x = work item, y = kv head. n is PAGE. A lane works on one group at a time.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
#include "lib/quant.glsl"
layout(local_size_x = 64) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint BITS = 2;
layout(constant_id = SPEC_K_GROUP) const uint GROUP = 32;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(push_constant) uniform Push { KvPackPush p; };
layout(std430, binding = 0) writeonly buffer Codes { uint codes[]; }; // codes and params may be one pool
layout(std430, binding = 1) writeonly buffer Params { uint params[]; };
layout(std430, binding = 2) readonly restrict buffer X { uint x[]; };
layout(std430, binding = 3) readonly restrict buffer Sources { uint sources[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const PackWork FIELD = PackWork(WORDS_10);

const uint LOCAL = 64, PAIRS = HEAD_DIM / 2, GROUP_PAIRS = GROUP / 2, GROUPS = HEAD_DIM / GROUP * PAGE; // [run][token]
const uint LOW_BITS = BITS == 3 ? 2 : BITS, PER_WORD = 32 / LOW_BITS, LOW_WORDS = (HEAD_DIM * LOW_BITS + 31) / 32;
shared uint group_s[GROUPS]; // half2(scale, zero) rounded to f16, then bytes
shared vec2 largest_s[LOCAL];

vec2 value(uint h, uint row, uint pair) { return unpackHalf2x16(x[KV_AT(2) + (h * p.t_cap + row) * PAIRS + pair]); }

// The largest scale and |zero| over all groups; `own`: over the groups of this lane.
vec2 largest_of(vec2 own) {
	largest_s[gl_LocalInvocationIndex] = own;
	barrier();
	vec2 largest = vec2(0);
	for (uint i = 0; i < LOCAL; i++) largest = max(largest, largest_s[i]);
	return largest;
}

void put_codes(uint codes_at, uint h, uint t, uint row, uint first, vec2 plain) { // `first`: the run's first pair
	const uint at = KV_AT(0) + codes_at + kv_v_word(h, t, 0, HEAD_DIM, BITS, PAGE), mask = (1u << LOW_BITS) - 1;
	uint packed = 0, filled = 0, high = 0;
	for (uint j = 0; j < GROUP_PAIRS; j++) {
		const uint pair = first + j;
		const vec2 v = value(h, row, pair);
		const uint a = code_of(v.x, plain, BITS), b = code_of(v.y, plain, BITS);
		packed |= (a & mask | (b & mask) << LOW_BITS) << (filled * LOW_BITS);
		high |= (a >> 2 | b >> 2 << 1) << (pair * 2 % 32);
		filled += 2;
		if (filled == PER_WORD || pair == PAIRS - 1) {
			codes[at + pair * 2 / PER_WORD] = packed;
			packed = 0, filled = 0;
		}
		if (BITS == 3 && (pair % 16 == 15 || pair == PAIRS - 1)) {
			codes[at + LOW_WORDS + pair / 16] = high;
			high = 0;
		}
	}
}

void main() {
	const uint lane = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, item = KV_AT(4) + gl_WorkGroupID.x * PACK_WORDS;
	const uint src = KV_AT(3) + work[item + FIELD.src], head = work[item + FIELD.head],
	           codes_at = work[item + FIELD.v_codes];
	const uint params_at = KV_AT(1) + work[item + FIELD.v_params],
	           n_params = kv_token_param_words(p.n_kv_heads, HEAD_DIM, GROUP, PAGE);
	if (head != ~0u && head != h) return; // uniform over the workgroup
	vec2 own = vec2(0);
	for (uint i = lane; i < GROUPS; i += LOCAL) {
		const uint row = sources[src + i % PAGE], first = i / PAGE * GROUP_PAIRS;
		float lo = 3.4e38, hi = -3.4e38;
		for (uint j = 0; j < GROUP_PAIRS; j++) {
			const vec2 v = value(h, row, first + j);
			lo = min(lo, min(v.x, v.y)), hi = max(hi, max(v.x, v.y));
		}
		group_s[i] = param_word(plain_params(lo, hi, BITS), BITS, p.zero_shift, p.scale_factor);
		own = max(own, abs(unpackHalf2x16(group_s[i])));
	}
	const vec2 largest = largest_of(own);
	if (lane == 0) params[params_at + kv_byte_largest_word(n_params, h)] = f16_pack(largest.x, largest.y);
	for (uint i = lane; i < GROUPS; i += LOCAL) group_s[i] = param_bytes(unpackHalf2x16(group_s[i]), largest);
	barrier();
	const uint first_param = kv_token_param(h, 0, 0, HEAD_DIM, GROUP, PAGE);
	for (uint i = lane; i < GROUPS / 2; i += LOCAL)
		params[params_at + kv_byte_param_word(first_param) + i] = group_s[2 * i] | group_s[2 * i + 1] << 16;
	if (codes_at == ~0u) return;
	for (uint i = lane; i < GROUPS; i += LOCAL)
		put_codes(codes_at, h, i % PAGE, sources[src + i % PAGE], i / PAGE * GROUP_PAIRS,
				  plain_of(bytes_meaning(group_s[i], largest), BITS, p.zero_shift, p.scale_factor));
}
