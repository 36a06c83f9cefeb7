// Packed codes as operands of integer dot products (lib/int8.glsl). The other operand, a query or a weight, is rounded.
//
// A code becomes a byte L: a uniform code itself, or for a codebook an integer with
//   value of the code (shared/kv_page.h) = dot_unit() (L - dot_middle())
// dot_middle() is also the middle of uniform codes. The values of a codebook are odd functions of the code's bits, and
// so are L:
//   2 bits: L = 13 code + bit 0 = 0, 14, 26, 40            -20, -6, 6, 20 times 0.0755: within 0.0003 of the values
//   3 bits: L = 18 bit 0 + 35 bit 1 + 62 bit 2 + 4 (bit 0 ^ bit 1 ^ bit 2)   +-6.5, 20.5, 37.5, 59.5 times 0.0362:
//   within 0.7 %
// An error of 3 % in one value would be visible: a rotated key whose channels are equally large has this error in all
// of them, with the same sign.
#ifndef KVRUN_DOT_GLSL
#define KVRUN_DOT_GLSL
#include "lib/int8.glsl"

float dot_middle(const uint bits, const bool book) {
	return book && bits == 2u ? 20.0 : book && bits == 3u ? 59.5 : 0.5 * float((1u << bits) - 1u);
}
float dot_unit(const uint bits, const bool book) {
	return !book ? 1.0 : bits == 1u ? kv_codebook_linear(1u) : bits == 2u ? 0.0755263f : 0.0362220f;
}
// Low bits of a code that are stored together; the others are in a plane of their own.
uint plain_bits(const uint bits) { return bits == 3u ? 2u : bits; }

// L of 4 codes, whose low bits are at the bottom of the bytes of `low`, and the high bits of 3-bit codes at the bottom
// of the bytes of `high`. The other bits may be anything.
#define CODE_BYTES(T)                                                                                                  \
	T code_bytes(T low, T high, const uint bits, const bool book) {                                                    \
		const T c = low & T(0x01010101u * ((1u << plain_bits(bits)) - 1u));                                            \
		if (bits == 3u && book) {                                                                                      \
			const T h = high & T(0x01010101u);                                                                         \
			const T d = (c >> 1u) & T(0x01010101u);                                                                    \
			return ((((c << 3u) + c) + (h << 5u) - h + (((c ^ d ^ h) & T(0x01010101u)) << 1u)) << 1u) - d;             \
		}                                                                                                              \
		if (bits == 3u) return c | (high & T(0x01010101u)) << 2u;                                                      \
		if (bits == 2u && book) return (c << 3u) + ((c << 2u) + c) + (c & T(0x01010101u));                             \
		return c;                                                                                                      \
	}
CODE_BYTES(uint)
CODE_BYTES(uvec4)

// Byte c % 4 of 4 words, in the order 0, 2, 1, 3.
uint transpose_bytes(uvec4 w, uint c) {
	w = w >> c % 4u * 8u;
	return (w.x & 255u) | (w.z & 255u) << 8u | (w.y & 255u) << 16u | w.w << 24u;
}
// Bits 4 b .. 4 b + 3 of the lower half of a word, to the bottom of byte b.
uvec4 nibbles_to_bytes(uvec4 x) {
	x = x & 0xffffu;
	x = (x | x << 8u) & 0x00ff00ffu;
	return (x | x << 4u) & 0x0f0f0f0fu;
}

#endif
