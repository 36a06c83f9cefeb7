// f16 keys or values of a whole page -> codes of a codebook and a norm per token and kv head: Scale::Codebook.
//
//   y = rotated x - mean of the channel over the page (keys); code = nearest codebook entry to y / rms(y)
//   norm = |y| / |values of the codes|: decoded vectors have the length of what was stored
//
//   0 codes pool words, written: K [kv head][word][token], V [kv head][token][word] in a page
//   1 params pool words, written | 2 x (n_kv_heads, t_cap, HEAD_DIM) f16 as words | 3 sources (n) u32 rows of x
//   4 work (n_work, PACK_WORDS) u32, PackWork
// Grid: x = work item, y = kv head.  FLAGS: PACK_P_*. n is PAGE.
// A workgroup rotates TILE tokens at a time; then each lane packs one token.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
#include "lib/quant.glsl"
#include "lib/book.glsl"
layout(local_size_x = 64) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint BITS = 2;
layout(constant_id = SPEC_PAGE) const uint PAGE = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { KvPackPush p; };
layout(std430, binding = 0) writeonly buffer Codes { uint codes[]; }; // codes and params may be one pool
layout(std430, binding = 1) writeonly buffer Params { uint params[]; };
layout(std430, binding = 2) readonly restrict buffer X { uint x[]; };
layout(std430, binding = 3) readonly restrict buffer Sources { uint sources[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const PackWork FIELD = PackWork(WORDS_10);

const bool VALUES = (FLAGS & PACK_P_VALUES) != 0, MEAN = (FLAGS & PACK_P_MEANS) != 0,
           ROTATE = (FLAGS & PACK_P_ROTATE) != 0, BYTES = (FLAGS & PACK_P_BYTES) != 0;
const uint LOCAL = 64, PAIRS = HEAD_DIM / 2, TILE = 2048 / HEAD_DIM,
           ROW = HEAD_DIM + 1; // odd, so that lanes' tokens lie in different banks
const uint LOW_BITS = BITS == 3 ? 2 : BITS, PER_WORD = 32 / LOW_BITS, LOW_WORDS = (HEAD_DIM * LOW_BITS + 31) / 32;
shared float y_s[TILE * ROW];
shared float mean_s[HEAD_DIM];
shared float norm_s[PAGE];

// Rotates the first n rows of y_s.
void rotate_rows(uint n) {
	const uint block = kv_rotation_block(HEAD_DIM), lane = gl_LocalInvocationIndex;
	for (uint i = lane; i < n * HEAD_DIM; i += LOCAL) {
		const uint c = i % HEAD_DIM, at = i / HEAD_DIM * ROW + c;
		if (kv_sign(c)) y_s[at] = -y_s[at];
	}
	barrier();
	for (uint step = 1; step < block; step *= 2) {
		for (uint i = lane; i < n * PAIRS; i += LOCAL) {
			const uint pair = i % PAIRS, at = i / PAIRS * ROW + pair / step * 2 * step + pair % step;
			const float a = y_s[at], b = y_s[at + step];
			y_s[at] = a + b;
			y_s[at + step] = a - b;
		}
		barrier();
	}
	for (uint i = lane; i < n * HEAD_DIM; i += LOCAL)
		y_s[i / HEAD_DIM * ROW + i % HEAD_DIM] *= kv_rotation_scale(block);
	barrier();
}

void find_means(uint h, uint src, uint params_at) {
	const uint lane = gl_LocalInvocationIndex;
	for (uint i = lane; i < PAIRS; i += LOCAL) {
		vec2 sum = vec2(0);
		for (uint t = 0; t < PAGE; t++)
			sum += unpackHalf2x16(x[KV_AT(2) + (h * p.t_cap + sources[src + t]) * PAIRS + i]);
		y_s[2 * i] = sum.x / float(PAGE);
		y_s[2 * i + 1] = sum.y / float(PAGE);
	}
	barrier();
	if (ROTATE) rotate_rows(1);
	for (uint i = lane; i < PAIRS; i += LOCAL) {
		const uint word = f16_pack(y_s[2 * i], y_s[2 * i + 1]);
		const vec2 mean = unpackHalf2x16(word);
		mean_s[2 * i] = mean.x;
		mean_s[2 * i + 1] = mean.y;
		params[params_at + kv_mean_word(p.n_kv_heads, h, 2 * i, HEAD_DIM, PAGE, BYTES ? 8u : 16u)] = word;
	}
	barrier();
}

float rest(uint at, uint c) { return y_s[at + c] - (MEAN ? mean_s[c] : 0.0); }

void put(uint codes_at, uint h, uint t, uint word, uint packed) {
	if (codes_at == ~0u) return;
	codes[KV_AT(0) + codes_at +
	      (VALUES ? kv_v_word(h, t, word, HEAD_DIM, BITS, PAGE) : kv_k_word(h, word, t, HEAD_DIM, BITS, PAGE))] =
	    packed;
}

// Codes of token t, whose channels begin at y_s[at]; returns its norm.
float pack_token(uint codes_at, uint h, uint t, uint at) {
	float sum = 0, decoded = 0;
	for (uint c = 0; c < HEAD_DIM; c++) sum += rest(at, c) * rest(at, c);
	const float rms = sqrt(sum / float(HEAD_DIM));
	uint low = 0, high = 0; // bits of the words being filled
	for (uint c = 0; c < HEAD_DIM; c++) {
		const float z = rms > 0 ? exact_divide(rest(at, c), rms) : 0;
		uint code = 0;
		for (uint i = 0; i + 1 < 1u << BITS; i++)
			code += z > 0.5 * (book_value(i, BITS) + book_value(i + 1, BITS)) ? 1 : 0;
		const float value = book_value(code, BITS);
		decoded += value * value;
		low |= (code & ((1u << LOW_BITS) - 1)) << (c % PER_WORD * LOW_BITS);
		high |= (code >> 2) << (c % 32);
		const bool last = c == HEAD_DIM - 1;
		if (last || c % PER_WORD == PER_WORD - 1) {
			put(codes_at, h, t, c / PER_WORD, low);
			low = 0;
		}
		if (BITS == 3 && (last || c % 32 == 31)) {
			put(codes_at, h, t, LOW_WORDS + c / 32, high);
			high = 0;
		}
	}
	return sqrt(sum / decoded);
}

void put_norms(uint h, uint params_at) {
	const uint lane = gl_LocalInvocationIndex, first = params_at + kv_norm_word(h, 0, PAGE, BYTES ? 8u : 16u);
	if (!BYTES) {
		for (uint w = lane; w < PAGE / 2; w += LOCAL) params[first + w] = f16_pack(norm_s[2 * w], norm_s[2 * w + 1]);
		return;
	}
	float largest = 0;
	for (uint t = 0; t < PAGE; t++) largest = max(largest, norm_s[t]);
	largest = round_f16(largest);
	if (lane == 0) params[params_at + kv_norm_scale_word(p.n_kv_heads, h, PAGE)] = f16_bits(largest);
	const float step = kv_255th(largest);
	for (uint w = lane; w < PAGE / 4; w += LOCAL) {
		uint packed = 0;
		for (uint i = 0; i < 4; i++)
			packed |= (step > 0 ? uint(min(roundEven(exact_divide(norm_s[4 * w + i], step)), 255.0)) : 0u) << (8 * i);
		params[first + w] = packed;
	}
}

void main() {
	const uint lane = gl_LocalInvocationIndex, h = gl_WorkGroupID.y, item = KV_AT(4) + gl_WorkGroupID.x * PACK_WORDS;
	const uint src = KV_AT(3) + work[item + FIELD.src], head = work[item + FIELD.head],
	           codes_at = work[item + (VALUES ? FIELD.v_codes : FIELD.k_codes)];
	const uint params_at = KV_AT(1) + work[item + (VALUES ? FIELD.v_params : FIELD.k_params)];
	if (head != ~0u && head != h) return; // uniform over the workgroup
	if (MEAN) find_means(h, src, params_at);
	for (uint first = 0; first < PAGE; first += TILE) {
		const uint n = min(TILE, PAGE - first);
		for (uint i = lane; i < n * PAIRS; i += LOCAL) {
			const uint row = sources[src + first + i / PAIRS], at = i / PAIRS * ROW + i % PAIRS * 2;
			const vec2 pair = unpackHalf2x16(x[KV_AT(2) + (h * p.t_cap + row) * PAIRS + i % PAIRS]);
			y_s[at] = pair.x;
			y_s[at + 1] = pair.y;
		}
		barrier();
		if (ROTATE) rotate_rows(n);
		for (uint t = lane; t < n; t += LOCAL) norm_s[first + t] = pack_token(codes_at, h, first + t, t * ROW);
		barrier();
	}
	put_norms(h, params_at);
}
