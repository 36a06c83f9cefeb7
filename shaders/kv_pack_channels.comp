// f16 keys -> codes with (scale, zero) per channel: parameters of one whole page, or those that a block already holds.
//
//   0 codes pool words, [kv head][word][token] in a page, written
//   1 params pool words, [kv head][channel], written; only read with PACK_K_BLOCK; in bytes with PACK_K_BYTES
//   2 k (n_kv_heads, t_cap, HEAD_DIM) f16 as words | 3 sources (n) u32 rows of k
//   4 work (n_work, PACK_WORDS) u32, PackWork
//   5 balance u32 words, balancers (n_kv_heads, HEAD_DIM) f16, with PACK_K_BALANCE
// Grid: x = work item, y = kv head.  FLAGS: PACK_K_*.
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
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { KvPackPush p; };
layout(std430, binding = 0) buffer Codes { uint codes[]; };   // codes and params may be one pool
layout(std430, binding = 1) buffer Params { uint params[]; };
layout(std430, binding = 2) readonly restrict buffer K { uint k[]; };
layout(std430, binding = 3) readonly restrict buffer Sources { uint sources[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const PackWork FIELD = PackWork(WORDS_10);
layout(std430, binding = 5) readonly restrict buffer Balance { uint balance[]; };

const bool BYTES = (FLAGS & PACK_K_BYTES) != 0;
const uint LOW_BITS = BITS == 3 ? 2 : BITS,
           LOW_WORDS = (HEAD_DIM * LOW_BITS + 31) / 32; // words of the low plane of 3-bit codes
const uint PAIRS = HEAD_DIM / 2, WORDS = LOW_WORDS + (BITS == 3 ? (HEAD_DIM + 31) / 32 : 0);
shared vec2 plain_s[HEAD_DIM]; // (scale, zero) that codes are computed with
shared vec2 factor_s[PAIRS];   // balancer of each pair of channels

vec2 key(uint h, uint row, uint pair) {
	return unpackHalf2x16(k[KV_AT(2) + (h * p.t_cap + row) * PAIRS + pair]) * factor_s[pair];
}

// plain_s holds each channel's parameters rounded to f16. Writes the nearest bytes, and sets plain_s to their values.
void put_bytes(uint h, uint params_at, bool mine) {
	const uint lane = gl_LocalInvocationIndex, n = kv_channel_param_words(p.n_kv_heads, HEAD_DIM);
	vec2 largest = vec2(0);
	for (uint c = 0; c < HEAD_DIM; c++) largest = max(largest, abs(plain_s[c]));
	barrier(); // all lanes have read all channels
	if (mine && lane == 0) params[params_at + kv_byte_largest_word(n, h)] = f16_pack(largest.x, largest.y);
	for (uint i = lane; i < PAIRS; i += 64) {
		uint word = 0;
		for (uint c = 0; c < 2; c++) {
			const uint bytes = param_bytes(plain_s[2 * i + c], largest);
			plain_s[2 * i + c] = plain_of(bytes_meaning(bytes, largest), BITS, p.zero_shift, p.scale_factor);
			word |= bytes << (16 * c);
		}
		if (mine) params[params_at + kv_byte_param_word(kv_channel_param(h, 2 * i, HEAD_DIM))] = word;
	}
	barrier();
}

void main() {
	const uint h = gl_WorkGroupID.y, item = KV_AT(4) + gl_WorkGroupID.x * PACK_WORDS;
	const uint src = KV_AT(3) + work[item + FIELD.src], n = work[item + FIELD.n], head = work[item + FIELD.head],
	           slot = work[item + FIELD.slot];
	const uint codes_at = work[item + FIELD.k_codes], params_at = KV_AT(1) + work[item + FIELD.k_params];
	const bool mine = head == ~0u || head == h;
	for (uint i = gl_LocalInvocationIndex; i < PAIRS; i += 64) {
		factor_s[i] = vec2(1);
		if ((FLAGS & PACK_K_BALANCE) != 0)
			factor_s[i] = unpackHalf2x16(balance[KV_AT(5) + work[item + FIELD.balance] + h * PAIRS + i]);
		vec2 lo = vec2(3.4e38), hi = vec2(-3.4e38);
		if ((FLAGS & PACK_K_BLOCK) == 0) {
			for (uint t = 0; t < n; t++) {
				const vec2 x = key(h, sources[src + t], i);
				lo = min(lo, x), hi = max(hi, x);
			}
		}
		for (uint c = 0; c < 2; c++) {
			const uint at = params_at + kv_channel_param(h, 2 * i + c, HEAD_DIM);
			if ((FLAGS & PACK_K_BLOCK) != 0) plain_s[2 * i + c] = unpackHalf2x16(params[at]);
			else {
				plain_s[2 * i + c] = plain_params(c == 0 ? lo.x : lo.y, c == 0 ? hi.x : hi.y, BITS);
				const uint word = param_word(plain_s[2 * i + c], BITS, p.zero_shift, p.scale_factor);
				if (BYTES) plain_s[2 * i + c] = unpackHalf2x16(word);
				else if (mine) params[at] = word;
			}
		}
	}
	barrier();
	if (BYTES) put_bytes(h, params_at, mine);
	if (!mine || codes_at == ~0u) return;
	for (uint i = gl_LocalInvocationIndex; i < n * WORDS; i += 64) {
		const uint t = i % n, word = i / n, row = sources[src + t];
		const bool high = word >= LOW_WORDS;
		const uint bits = high ? 1 : LOW_BITS, pairs = 16 / bits, first = (high ? word - LOW_WORDS : word) * pairs;
		const uint shift = high ? 2 : 0, mask = (1u << bits) - 1;
		uint packed = 0;
		for (uint j = 0; j < pairs; j++) {
			const uint pair = first + j;
			if (pair >= PAIRS) break;
			const vec2 x = key(h, row, pair);
			packed |= (code_of(x.x, plain_s[2 * pair], BITS) >> shift & mask) << (2 * j * bits);
			packed |= (code_of(x.y, plain_s[2 * pair + 1], BITS) >> shift & mask) << ((2 * j + 1) * bits);
		}
		codes[KV_AT(0) + codes_at + kv_k_word(h, word, slot + t, HEAD_DIM, BITS, PAGE)] = packed;
	}
}
