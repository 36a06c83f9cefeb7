// Codes of a codebook (shared/kv_page.h) and norms, as floats.
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
// Norms of 4 tokens: 4 bytes, of which `largest` says how much they mean, or 2 words of halves.
vec4 norms_of_bytes(uint w, uint largest) { return bytes_of(w) * kv_norm_step(unpackHalf2x16(largest).x); }
vec4 norms_of_halves(uint a, uint b) { return vec4(unpackHalf2x16(a), unpackHalf2x16(b)); }

// The first two stages of a Hadamard transform: of 4 channels that lie together.
vec4 hadamard4(vec4 x) {
	const vec4 a = vec4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
	return vec4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
}
// x with the signs of channels c .. c + 3.
vec4 signed4(vec4 x, uint c) {
	return mix(x, -x, bvec4(kv_sign(c), kv_sign(c + 1u), kv_sign(c + 2u), kv_sign(c + 3u)));
}

#endif
