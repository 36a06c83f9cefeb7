// f16 keys or values -> codes with (scale, zero) per token and run of GROUP channels; a run may span kv heads.
//
//   0 codes pool words, written: K [kv head][word][token], V [kv head][token][word] in a page
//   1 params pool words, [run][token], written
//   2 x (n_kv_heads, t_cap, HEAD_DIM) f16 as words | 3 sources (n) u32 rows of x
//   4 work (n_work, PACK_WORDS) u32, PackWork
//   5 norm f16 as words. PACK_T_BALANCE: balancers (n_kv_heads, HEAD_DIM), which keys are multiplied by;
//     PACK_T_FACTORS: pool words with channel factors, which values are divided by
// Grid: x = LOCAL_X (token, run) pairs of a work item, y = work item.  FLAGS: PACK_T_*.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
#include "lib/quant.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint BITS = 2;
layout(constant_id = SPEC_K_GROUP) const uint GROUP = 32;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { KvPackPush p; };
layout(std430, binding = 0) buffer Codes { uint codes[]; };   // codes, params and factors may be one pool
layout(std430, binding = 1) buffer Params { uint params[]; };
layout(std430, binding = 2) readonly restrict buffer X { uint x[]; };
layout(std430, binding = 3) readonly restrict buffer Sources { uint sources[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const PackWork FIELD = PackWork(WORDS_10);
layout(std430, binding = 5) readonly buffer Norm { uint norm[]; };

const bool VALUES = (FLAGS & PACK_T_VALUES) != 0;
const uint LOW_BITS = BITS == 3 ? 2 : BITS,
           LOW_WORDS = (HEAD_DIM * LOW_BITS + 31) / 32; // words of the low plane of 3-bit codes
const uint PAIRS = HEAD_DIM / 2, PER_WORD = 32 / LOW_BITS;
uint norm_at = 0;

// Channels 2 pair and 2 pair + 1, counted over all heads of one token.
vec2 value(uint row, uint pair) {
	vec2 v = unpackHalf2x16(x[KV_AT(2) + (pair / PAIRS * p.t_cap + row) * PAIRS + pair % PAIRS]);
	if ((FLAGS & PACK_T_BALANCE) != 0) v *= unpackHalf2x16(norm[norm_at + pair]);
	if ((FLAGS & PACK_T_FACTORS) != 0) {
		const vec2 f = unpackHalf2x16(norm[norm_at + pair]);
		v = vec2(exact_divide(v.x, f.x), exact_divide(v.y, f.y));
	}
	return v;
}

uint code_word(uint h, uint t, uint word) {
	return VALUES ? kv_v_word(h, t, word, HEAD_DIM, BITS, PAGE) : kv_k_word(h, word, t, HEAD_DIM, BITS, PAGE);
}

void main() {
	const uint item = KV_AT(4) + gl_WorkGroupID.y * PACK_WORDS;
	const uint n = work[item + FIELD.n], head = work[item + FIELD.head], slot = work[item + FIELD.slot];
	const uint first = head == ~0u ? 0 : head * HEAD_DIM, channels = head == ~0u ? p.n_kv_heads * HEAD_DIM : HEAD_DIM;
	const uint runs = channels / GROUP, i = gl_GlobalInvocationID.x;
	if (i >= n * runs) return;
	const uint t = i / runs, from = (first + i % runs * GROUP) / 2; // `from`: the run's first pair
	const uint row = sources[KV_AT(3) + work[item + FIELD.src] + t];
	norm_at = KV_AT(5) + work[item + (VALUES ? FIELD.v_factors : FIELD.balance)];

	float lo = 3.4e38, hi = -3.4e38;
	for (uint j = 0; j < GROUP / 2; j++) {
		const vec2 v = value(row, from + j);
		lo = min(lo, min(v.x, v.y)), hi = max(hi, max(v.x, v.y));
	}
	const vec2 plain = plain_params(lo, hi, BITS);
	const uint h0 = from / PAIRS, c0 = from % PAIRS * 2;
	params[KV_AT(1) + work[item + (VALUES ? FIELD.v_params : FIELD.k_params)] +
	       kv_token_param(h0, c0, slot + t, HEAD_DIM, GROUP, PAGE)] =
	    param_word(plain, BITS, p.zero_shift, p.scale_factor);
	const uint codes_at = work[item + (VALUES ? FIELD.v_codes : FIELD.k_codes)];
	if (codes_at == ~0u) return;
	// Words never span heads: with fewer channels than a word holds, the rest of the word is 0.
	const uint mask = (1u << LOW_BITS) - 1;
	uint packed = 0, filled = 0, high = 0;
	for (uint j = 0; j < GROUP / 2; j++) {
		const vec2 v = value(row, from + j);
		const uint a = code_of(v.x, plain, BITS), b = code_of(v.y, plain, BITS), pair = (from + j) % PAIRS,
		           h = (from + j) / PAIRS;
		packed |= (a & mask) << (filled * LOW_BITS);
		packed |= (b & mask) << ((filled + 1) * LOW_BITS);
		high |= (a >> 2 | b >> 2 << 1) << (pair * 2 % 32);
		filled += 2;
		if (filled == PER_WORD || pair == PAIRS - 1) {
			codes[KV_AT(0) + codes_at + code_word(h, slot + t, pair * 2 / PER_WORD)] = packed;
			packed = 0, filled = 0;
		}
		if (BITS == 3 && (pair % 16 == 15 || pair == PAIRS - 1)) {
			codes[KV_AT(0) + codes_at + code_word(h, slot + t, LOW_WORDS + pair / 16)] = high;
			high = 0;
		}
	}
}
