// f16 keys or values of a whole page -> codes of a codebook and a norm per token and kv head: Scale::Codebook.
//
//   y = rotated x - mean of the channel over the page (keys); code = nearest codebook entry to factor y / rms(y), for
//   the factor of kv_codebook_factor() whose codes have the direction nearest to y
//   norm = |y| / |values of the codes|: decoded vectors have the length of what was stored
//
//   0 codes pool words, written: K [kv head][word][token], V [kv head][token][word] in a page
//   1 params pool words, written | 2 x (n_kv_heads, t_cap, HEAD_DIM) f16 as words | 3 sources (n) u32 rows of x
//   4 work (n_work, PACK_WORDS) u32, PackWork
// Grid: x = work item, y = kv head.  FLAGS: PACK_P_*. n is PAGE.
// A workgroup rotates TILE tokens at a time; then PARTS lanes try factors of one token, and one of them packs it.
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
const uint LOCAL = 64, PAIRS = HEAD_DIM / 2, TILE = HEAD_DIM > 32 ? 2048 / HEAD_DIM : LOCAL,
           PARTS = LOCAL / TILE, // lanes of a token
           ROW = HEAD_DIM + 1; // odd, so that lanes' tokens lie in different banks
const uint LOW_BITS = BITS == 3 ? 2 : BITS, PER_WORD = 32 / LOW_BITS, LOW_WORDS = (HEAD_DIM * LOW_BITS + 31) / 32;
shared float y_s[TILE * ROW];
shared float mean_s[HEAD_DIM];
shared float norm_s[PAGE];
shared vec2 try_s[LOCAL]; // the best try of a lane: (nearness, factor)

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

// The code nearest to z, of the codes from `first` on.
uint nearest_code(float z, uint first) {
	uint code = first;
	for (uint i = first; i + 1 < 1u << BITS; i++)
		code += z > 0.5 * (book_value(i, BITS) + book_value(i + 1, BITS)) ? 1 : 0;
	return code;
}

// The squared cosine of the angle between the values z at y_s[at] and those of their codes, times |z|^2. Codebooks are
// symmetric, so the upper half is compared with |z|.
float nearness(uint at, float factor) {
	float product = 0, length = 0;
	for (uint c = 0; c < HEAD_DIM; c++) {
		const float z = abs(y_s[at + c]), value = book_value(nearest_code(z * factor, 1u << (BITS - 1)), BITS);
		product += z * value;
		length += value * value;
	}
	return product * product / length; // no value of a codebook is 0
}

// The best of the factors part, part + PARTS ..., and its nearness.
vec2 best_try(uint at, uint part) {
	vec2 best = vec2(-1);
	for (uint i = part; i < kv_codebook_tries(BITS); i += PARTS) {
		const float factor = kv_codebook_factor(BITS, i), near = nearness(at, factor);
		if (near > best.x) best = vec2(near, factor);
	}
	return best;
}
float best_factor(uint t) { // of all lanes of token t; of equal ones the smallest, which is the first
	vec2 best = try_s[t];
	for (uint part = 1; part < PARTS; part++) {
		const vec2 other = try_s[part * TILE + t];
		if (other.x > best.x || other.x == best.x && other.y < best.y) best = other;
	}
	return best.y;
}

// Codes of token t, whose values z are at y_s[at]; returns the squared length of what they mean.
float put_token(uint codes_at, uint h, uint t, uint at, float factor) {
	float decoded = 0;
	uint low = 0, high = 0; // bits of the words being filled
	for (uint c = 0; c < HEAD_DIM; c++) {
		const uint code = nearest_code(y_s[at + c] * factor, 0);
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
	return decoded;
}

// Codes and norms of the n tokens of y_s, which are tokens first .. of the page.
void pack_tile(uint codes_at, uint h, uint first, uint n) {
	const uint t = gl_LocalInvocationIndex % TILE, part = gl_LocalInvocationIndex / TILE, at = t * ROW;
	const bool busy = t < n && part < PARTS;
	float sum = 0;
	if (busy)
		for (uint c = 0; c < HEAD_DIM; c++) sum += rest(at, c) * rest(at, c);
	const float rms = sqrt(sum / float(HEAD_DIM));
	barrier();
	if (busy)
		for (uint c = part; c < HEAD_DIM; c += PARTS) y_s[at + c] = rms > 0 ? exact_divide(rest(at, c), rms) : 0;
	barrier();
	if (busy) try_s[gl_LocalInvocationIndex] = best_try(at, part);
	barrier();
	if (busy && part == 0) norm_s[first + t] = sqrt(sum / put_token(codes_at, h, first + t, at, best_factor(t)));
	barrier();
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
		pack_tile(codes_at, h, first, n);
	}
	put_norms(h, params_at);
}
