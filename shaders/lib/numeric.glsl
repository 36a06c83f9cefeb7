// f16 in 32-bit words, the same on every driver: packHalf2x16 may round either way; these functions round to nearest
// even.
#ifndef KVRUN_NUMERIC_GLSL
#define KVRUN_NUMERIC_GLSL

// binary32 -> binary16 bits by integers alone (engine/core/f16.h is the definition); overflow becomes infinity.
uint f16_bits(float f) {
	const uint x = floatBitsToUint(f), a = x & 0x7fffffffu, sign = (x >> 16) & 0x8000u;
	if (a >= 0x7f800000u) return sign | 0x7c00u | (a > 0x7f800000u ? 0x200u | ((a >> 13) & 0x3ffu) : 0u);
	if (a >= 0x477ff000u) return sign | 0x7c00u;
	if (a < 0x33000000u) return sign;
	const bool tiny = a < 0x38800000u; // subnormal result
	const uint shift = tiny ? 126u - (a >> 23) : 13u;
	const uint man = tiny ? (a & 0x7fffffu) | 0x800000u : a - 0x38000000u;
	const uint rest = man & ((1u << shift) - 1u), half_ulp = 1u << (shift - 1u), r = man >> shift;
	const bool up = rest > half_ulp || (rest == half_ulp && (r & 1u) != 0u);
	return sign | (r + (up ? 1u : 0u));
}
uint f16_pack(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }

float bf16_low(uint w) { return uintBitsToFloat(w << 16); }
float bf16_high(uint w) { return uintBitsToFloat(w & 0xffff0000u); }

#endif
