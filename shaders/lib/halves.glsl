// Pairs of halves in 32-bit words to floats, and back.

// (scale, zero) words of 4 tokens or 4 channels.
void params_of(uvec4 w, out vec4 scale, out vec4 zero) {
	const vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), d = unpackHalf2x16(w.w);
	scale = vec4(a.x, b.x, c.x, d.x);
	zero = vec4(a.y, b.y, c.y, d.y);
}
vec4 halves_low(uvec4 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
vec4 halves_high(uvec4 w) { return vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w)); }
// 8 channels as halves; values beyond the largest half become infinite.
uvec4 halves8(vec4 low, vec4 high) {
	return uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
}
// Two halves, infinite ones replaced by the largest half of their sign. A NaN is kept, so that a damaged weight shows
// in the results: clamp() of floats makes it a number on NVIDIA GPUs and lavapipe.
uint finite_halves(uint x) {
	const uint rest = ((x & 0x7fff7fffu) ^ 0x7c007c00u) + 0x7fff7fffu; // a half's top bit is 0 if it is infinite
	return x - (~rest >> 15u & 0x00010001u);
}
// 4 and 8 channels as halves, values beyond the largest half as that one.
uvec2 finite_halves4(vec4 x) {
	return uvec2(finite_halves(packHalf2x16(x.xy)), finite_halves(packHalf2x16(x.zw)));
}
uvec4 finite_halves8(vec4 low, vec4 high) { return uvec4(finite_halves4(low), finite_halves4(high)); }
