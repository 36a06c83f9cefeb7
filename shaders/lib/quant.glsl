// Quantisation by the rules of engine/kv/quant.h: scale and zero are rounded to f16 before codes are computed.
#ifndef KVRUN_QUANT_GLSL
#define KVRUN_QUANT_GLSL
#include "lib/numeric.glsl"

// a / b to the last bit or nearly so: drivers may be 2.5 units off, which would move codes and scales.
float exact_divide(float a, float b) {
	const float q = a / b;
	precise float rest = fma(-q, b, a);
	return q + rest / b;
}
float round_f16(float x) { return unpackHalf2x16(f16_bits(x)).x; }

// Plain (scale, zero) of values between lo and hi, f16-rounded: what codes are computed with.
vec2 plain_params(float lo, float hi, uint bits) {
	return vec2(round_f16(exact_divide(hi - lo, float((1u << bits) - 1u))), round_f16(lo));
}
// What is stored: XQuant eq. (9) moves both ends inwards.
uint param_word(vec2 plain, uint bits, float shift, float shrink) {
	precise float scale = shrink * plain.x, zero = plain.y + shift * plain.x * float((1u << bits) - 1u);
	return f16_pack(scale, zero);
}
uint code_of(float x, vec2 plain, uint bits) {
	if (!(plain.x > 0)) return 0;
	return uint(clamp(roundEven(exact_divide(x - plain.y, plain.x)), 0.0, float((1u << bits) - 1u)));
}

#endif
