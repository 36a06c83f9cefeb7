// A piece: 8 neighbouring channels of one token, channels 8 c .. 8 c + 7. Locates and decodes its codes.
#ifndef KVRUN_PIECES_GLSL
#define KVRUN_PIECES_GLSL

// Word of a token's codes where piece c begins; with 3 bits, in the plane of low bits.
uint piece_word(uint c, const uint bits) { return c * (bits == 3u ? 2u : bits) / 4u; }
// The word where its second half begins (8 bits), or its high bits (3 bits); other widths have no second word.
uint piece_word2(uint c, const uint bits) {
	return bits == 3u ? (HEAD_DIM * 2u + 31u) / 32u + c / 4u : piece_word(c, bits) + 1u;
}
// Codes of piece c out of these two words, as floats; zeros where mask is 0 (else it is ~0).
void piece_codes(uint w, uint w2, uint c, const uint bits, uint mask, out vec4 low, out vec4 high) {
	const uint plain = bits == 3u ? 2u : bits; // bits of a code in w
	w = w >> (c * plain * 8u % 32u) & mask;
	w2 = (bits == 3u ? w2 >> (c * 8u % 32u) : w2) & mask;
	uvec4 a, b;
	[[unroll]] for (uint i = 0; i < 4u; i++) {
		a[i] = CODE(w, plain, i);
		b[i] = bits == 8u ? CODE(w2, plain, i) : CODE(w, plain, i + 4u);
		if (bits == 3u) {
			a[i] |= CODE(w2, 1u, i) << 2u;
			b[i] |= CODE(w2, 1u, i + 4u) << 2u;
		}
	}
	low = CODE_VEC4(a);
	high = CODE_VEC4(b);
}

#endif
