// Integer dot products of 4 x 8 bits (Caps::int_dot), exact, and floats rounded to bytes.
#ifndef KVRUN_INT8_GLSL
#define KVRUN_INT8_GLSL
#extension GL_EXT_spirv_intrinsics : require

spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_bytes(int a, int b, spirv_literal int packed_4x8); // OpSDot
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4451)
uint dot_bytes(uint a, uint b, spirv_literal int packed_4x8); // OpUDot

// x * inverse + offset rounded to integers in 0 .. 2^16 - 1, in the low 16 bits: floats from 2^23 to 2^24 have no
// fraction.
uvec4 round_above(vec4 x, float inverse, float offset) {
	return floatBitsToUint(fma(x, vec4(inverse), vec4(8388608.0 + offset)));
}
// The lowest bytes of 4 words.
uint pack_bytes(uvec4 b) { return (b.x & 255u) | (b.y & 255u) << 8u | (b.z & 255u) << 16u | b.w << 24u; }
// x * inverse, between -128 and 127, as 4 signed bytes: 2^23 + 2^22 keeps sums with negative numbers above 2^23, and
// their low bits are those of two's complement.
uint signed_bytes(vec4 x, float inverse) { return pack_bytes(round_above(x, inverse, 4194304.0)); }

#endif
