// Codes and scales of weight rows (shared/weight_row.h): the arithmetic on words that GLSL and CUDA share.
#ifndef KVRUN_WEIGHT_CODES_H
#define KVRUN_WEIGHT_CODES_H
#include "shared/weight_row.h"
#ifdef __cplusplus
namespace kvrun {
#endif

// Codes of elements 4i .. 4i + 3 of a unit whose words are x and y, as unsigned bytes, without their high bits.
KV_ROW_FN uint weight_nibbles(uint x, uint y, uint i) {
	return (((i & 1u) == 0u ? x : y) >> (i < 2u ? 0u : 4u)) & 0x0f0f0f0fu;
}
// Adds high bits: bit i, or the two bits from 2i on, of each byte of `word`, shifted above `bits` lower bits.
KV_ROW_FN uint weight_high_bit(uint word, uint i, uint bits) { return ((word >> i) & 0x01010101u) << bits; }
KV_ROW_FN uint weight_high_bits(uint word, uint i, uint bits) { return ((word >> (2u * i)) & 0x03030303u) << bits; }

// Bytes 0 .. 2 * zero - 1 minus zero, as signed bytes.
KV_ROW_FN uint weight_centred(uint code, uint zero) {
	return ((code | 0x80808080u) - zero * 0x01010101u) ^ 0x80808080u;
}

// SCALE_K: scale and min of run r (32 elements), from the last three words of a piece of scales.
KV_ROW_FN uint weight_k_scale(uint low, uint upper, uint r) {
	return ((low >> (4u * r)) & 15u) | ((upper >> (2u * r)) & 3u) << 4;
}
KV_ROW_FN uint weight_k_min(uint low, uint upper, uint r) {
	return ((low >> (4u * r)) & 15u) | ((upper >> (2u * r + 16u)) & 3u) << 4;
}

// The 16 values that CODE_BOOK indexes, and those of CODE_FP4 times two, as signed bytes: constants of GGML's formats.
#define BOOK_IQ4 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u
#define BOOK_FP4 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu
KV_ROW_FN uint weight_book_byte(uint w0, uint w1, uint w2, uint w3, uint n) {
	return ((n < 8u ? (n < 4u ? w0 : w1) : (n < 12u ? w2 : w3)) >> (8u * (n & 3u))) & 255u;
}
// The table's values for four bytes below 16.
KV_ROW_FN uint weight_book(uint w0, uint w1, uint w2, uint w3, uint n) {
	return weight_book_byte(w0, w1, w2, w3, n & 15u) | weight_book_byte(w0, w1, w2, w3, (n >> 8) & 15u) << 8 |
	       weight_book_byte(w0, w1, w2, w3, (n >> 16) & 15u) << 16 | weight_book_byte(w0, w1, w2, w3, n >> 24) << 24;
}

// SCALE_E8M0: bits of the float 2^(e - 128).
KV_ROW_FN uint weight_e8m0(uint e) { return e < 2u ? 0x00200000u << e : (e - 1u) << 23; }

// SCALE_E4M3: half of an unsigned E4M3 number; bit 7 is ignored. Exact.
KV_ROW_FN float weight_e4m3(uint x) {
	const uint e = (x >> 3) & 15u, m = (x & 7u) | (e == 0u ? 0u : 8u);
	return float(m << (e > 1u ? e - 1u : 0u)) * 0.0009765625f; // 2^-10
}

// Types with grids. The table that kernels read holds words of 4 elements as bytes: two words per entry, for IQ3 one.
// The elements of IQ1 are -8, 0 and 8, stored as 0, 8 and 16. Word where each grid begins:
#define GRID_IQ2_XXS 0u
#define GRID_IQ2_XS 512u
#define GRID_IQ2_S 1536u
#define GRID_IQ3_XXS 3584u
#define GRID_IQ3_S 3840u
#define GRID_IQ1 4352u
#define GRID_WORDS 8448u

struct GridUnit {
	uint entries, more; // 16 bits each: entries 0 and 1; IQ3 also entries 2 and 3
	uint signs;         // bit i: element i is negative; IQ1: the offset of entry i is negative
	uint scale;         // s
};
#ifdef __cplusplus
#define KV_GRID_UNIT(scale)                                                                                            \
	{ 0u, 0u, 0u, scale } // C++17 requires constexpr functions to initialise their variables
#else
#define KV_GRID_UNIT(scale) GridUnit(0u, 0u, 0u, scale)
#endif

// 7 sign bits; the eighth is their parity.
KV_ROW_FN uint grid_signs(uint s) {
	const uint a = (s ^ (s >> 4)) & 15u, b = a ^ (a >> 2);
	return s | ((b ^ (b >> 1)) & 1u) << 7;
}
KV_ROW_FN uint grid_two(uint lower, uint upper) { return lower | upper << 16; }

// From the words of a unit. `x`: its codes (of IQ2_XXS the first word of its 32 elements, and `y` the second); `high`,
// `scale`: the words of these parts for it, or for its 32 elements; `h`: 1 for the upper 16 of them.
KV_ROW_FN GridUnit grid_unit(uint codes, uint x, uint y, uint high, uint scale, uint h) {
	GridUnit g = KV_GRID_UNIT(scale & 15u);
	if (codes == CODE_IQ2_XXS) {
		const uint e = x >> (16u * h), s = y >> (14u * h);
		g.entries = grid_two(e & 255u, (e >> 8) & 255u);
		g.signs = grid_signs(s & 127u) | grid_signs((s >> 7) & 127u) << 8;
		g.scale = y >> 28;
	} else if (codes == CODE_IQ2_XS) {
		g.entries = x & 0x01ff01ffu;
		g.signs = grid_signs((x >> 9) & 127u) | grid_signs(x >> 25) << 8;
	} else if (codes == CODE_IQ2_S) {
		g.entries = grid_two((x & 255u) | (high & 3u) << 8, ((x >> 8) & 255u) | (high & 12u) << 6);
		g.signs = x >> 16;
		g.scale = (high >> 4) & 15u;
	} else if (codes == CODE_IQ3_XXS) {
		const uint s = high >> (14u * h);
		g.entries = grid_two(x & 255u, (x >> 8) & 255u);
		g.more = grid_two((x >> 16) & 255u, x >> 24);
		g.signs = grid_signs(s & 127u) | grid_signs((s >> 7) & 127u) << 8;
		g.scale = high >> 28;
	} else if (codes == CODE_IQ3_S) {
		g.entries = grid_two((x & 255u) | (scale & 1u) << 8, ((x >> 8) & 255u) | (scale & 2u) << 7);
		g.more = grid_two(((x >> 16) & 255u) | (scale & 4u) << 6, (x >> 24) | (scale & 8u) << 5);
		g.signs = high;
		g.scale = (scale >> 4) & 15u;
	} else if (codes == CODE_IQ1_S) {
		const uint e = high >> (6u * h);
		g.entries = grid_two((x & 255u) | (e & 7u) << 8, ((x >> 8) & 255u) | (e & 56u) << 5);
		g.signs = ((high >> 15) & 1u) * 3u;
		g.scale = (high >> 12) & 7u;
	} else {
		g.entries = grid_two((x & 255u) | (high & 7u) << 8, ((x >> 8) & 255u) | (high & 112u) << 4);
		g.signs = ((high >> 3) & 1u) | ((high >> 6) & 2u);
	}
	return g;
}

KV_ROW_FN uint grid_begin(uint codes) {
	return codes == CODE_IQ2_XXS   ? GRID_IQ2_XXS
	       : codes == CODE_IQ2_XS  ? GRID_IQ2_XS
	       : codes == CODE_IQ2_S   ? GRID_IQ2_S
	       : codes == CODE_IQ3_XXS ? GRID_IQ3_XXS
	       : codes == CODE_IQ3_S   ? GRID_IQ3_S
	                               : GRID_IQ1;
}
// The word of the table with elements 4i .. 4i + 3 of a unit.
KV_ROW_FN uint grid_word(uint codes, GridUnit g, uint i) {
	if (codes == CODE_IQ3_XXS || codes == CODE_IQ3_S)
		return grid_begin(codes) + (((i < 2u ? g.entries : g.more) >> (16u * (i & 1u))) & 0xffffu);
	return grid_begin(codes) + 2u * ((g.entries >> (16u * (i >> 1))) & 0xffffu) + (i & 1u);
}
// The codes of these elements as signed bytes, from that word.
KV_ROW_FN uint grid_codes(uint codes, GridUnit g, uint i, uint word) {
	if (codes == CODE_IQ1_S || codes == CODE_IQ1_M)
		return weight_centred(word, ((g.signs >> (i >> 1)) & 1u) == 0u ? 7u : 9u);
	const uint s = g.signs >> (4u * i); // no element is 0: the carry of a negation stays in its byte
	const uint negative = (s & 1u) | (s & 2u) << 7 | (s & 4u) << 14 | (s & 8u) << 21;
	return (word ^ negative * 255u) + negative;
}
// Multiplier of the factor.
KV_ROW_FN float grid_scale(uint codes, GridUnit g) {
	return float(2u * g.scale + 1u) * (codes == CODE_IQ3_S ? 1.0f : codes == CODE_IQ3_XXS ? 0.25f : 0.125f);
}

#ifdef __cplusplus
}
#endif
#endif
