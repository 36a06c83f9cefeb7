// f16 pairs in 32-bit words to floats.

// (scale, zero) words of 4 tokens or 4 channels.
void params_of(uvec4 w, out vec4 scale, out vec4 zero) {
	const vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), d = unpackHalf2x16(w.w);
	scale = vec4(a.x, b.x, c.x, d.x);
	zero = vec4(a.y, b.y, c.y, d.y);
}
vec4 halves_low(uvec4 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
vec4 halves_high(uvec4 w) { return vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w)); }
// 8 channels as halves; values beyond the largest half become infinite unless largest_halves() was applied before.
uvec4 halves8(vec4 low, vec4 high) {
	return uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
}
vec4 largest_halves(vec4 x) { return clamp(x, vec4(-65504.0), vec4(65504.0)); }
