// Codes of a codebook (shared/kv_page.h), norms, and parameters in bytes, as floats.
#ifndef KVRUN_BOOK_GLSL
#define KVRUN_BOOK_GLSL

vec4 book_values(vec4 code, uint bits) {
	const vec4 u = code - kv_codebook_middle(bits);
	return u * (kv_codebook_linear(bits) + kv_codebook_cubic(bits) * (u * u));
}
float book_value(uint code, uint bits) {
	const float u = float(code) - kv_codebook_middle(bits);
	return u * (kv_codebook_linear(bits) + kv_codebook_cubic(bits) * (u * u));
}

vec4 bytes_of(uint w) { return vec4(uvec4(w, w >> 8u, w >> 16u, w >> 24u) & 255u); }
// Norms of 4 tokens: 4 bytes, scaled by the largest norm in word `largest`, or 2 words of halves.
vec4 norms_of_bytes(uint w, uint largest) { return bytes_of(w) * kv_255th(unpackHalf2x16(largest).x); }
vec4 norms_of_halves(uint a, uint b) { return vec4(unpackHalf2x16(a), unpackHalf2x16(b)); }

// (scale, zero) of 4 pairs of bytes in 2 words (shared/kv_page.h); `largest`: the word of the largest (scale, |zero|).
void byte_params_of(uvec2 w, uint largest, out vec4 scale, out vec4 zero) {
	const vec2 most = unpackHalf2x16(largest);
	scale = vec4(uvec4(w.x, w.x >> 16u, w.y, w.y >> 16u) & 255u) * kv_255th(most.x);
	zero = (vec4(uvec4(w.x >> 8u, w.x >> 24u, w.y >> 8u, w.y >> 24u) & 255u) - 128.0) * kv_127th(most.y);
}

// The first two stages of a Hadamard transform, within 4 neighbouring channels.
vec4 hadamard4(vec4 x) {
	const vec4 a = vec4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
	return vec4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
}
// x with the signs that the rotation gives channels c .. c + 3.
vec4 signed4(vec4 x, uint c) {
	return mix(x, -x, bvec4(kv_sign(c), kv_sign(c + 1u), kv_sign(c + 2u), kv_sign(c + 3u)));
}

#endif
