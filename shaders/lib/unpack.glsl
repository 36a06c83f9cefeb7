// Packed KV codes to floats: a word holds 32 / bits codes, the lowest channel in the lowest bits.
//
// CODE(w, bits, i): code i of every word of w (uint or uvec), as uint; bits and i are constants after unrolling. On a GPU
// codes are first brought to the bottom of bytes, all with one mask: a byte to float is one instruction there.
#ifdef TEXEL
#define CODE(w, bits, i) (((w) >> ((i) * (bits))) & ((1u << (bits)) - 1u))
#define CODE_VEC4(u) vec4(ivec4(u)) // small numbers convert faster as signed ones
#else
#define CODE(w, bits, i) ((((w) >> ((i) * (bits) % 8u)) & (0x01010101u * ((1u << (bits)) - 1u))) >> ((i) * (bits) / 8u * 8u) & 255u)
#define CODE_VEC4(u) vec4(u)
#endif

// (scale, zero) words of 4 tokens or 4 channels.
void params_of(uvec4 w, out vec4 scale, out vec4 zero) {
	const vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), d = unpackHalf2x16(w.w);
	scale = vec4(a.x, b.x, c.x, d.x);
	zero = vec4(a.y, b.y, c.y, d.y);
}
vec4 halves_low(uvec4 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
vec4 halves_high(uvec4 w) { return vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w)); }
