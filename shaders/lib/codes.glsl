// Packed KV codes to floats: a word holds 32 / bits codes, the lowest channel in the lowest bits.
//
// CODE(w, bits, i): code i of every word of w (uint or uvec), as uint; bits and i are constants after unrolling. On a
// GPU codes are first moved to the bottom of bytes, all with one mask, because converting a byte to float is one
// instruction.
#define CODE(w, bits, i)                                                                                               \
	((((w) >> ((i) * (bits) % 8u)) & (0x01010101u * ((1u << (bits)) - 1u))) >> ((i) * (bits) / 8u * 8u) & 255u)
#define CODE_VEC4(u) vec4(u)
