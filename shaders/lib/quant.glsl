// Quantisation by the rules of engine/kv_host/quant.h: scale and zero are rounded to f16 before codes are computed.
#ifndef KVRUN_QUANT_GLSL
#define KVRUN_QUANT_GLSL
#include "lib/numeric.glsl"

// a / b, correct to about the last bit: a driver's division may be 2.5 ulp off, which would change codes and scales.
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
// What is stored: XQuant eq. (9) moves both ends of the range inwards.
uint param_word(vec2 plain, uint bits, float shift, float shrink) {
	precise float scale = shrink * plain.x, zero = plain.y + shift * plain.x * float((1u << bits) - 1u);
	return f16_pack(scale, zero);
}
// The bytes nearest to (scale, zero), and their decoded values (shared/kv_page.h); `largest`: the largest (scale,
// |zero|).
uint param_bytes(vec2 x, vec2 largest) {
	const float scale_step = kv_255th(largest.x), zero_step = kv_127th(largest.y);
	uint scale = scale_step > 0 ? uint(clamp(roundEven(exact_divide(x.x, scale_step)), 0.0, 255.0)) : 0u;
	if (x.x > 0) scale = max(scale, 1u);
	const float zero = zero_step > 0 ? roundEven(exact_divide(x.y, zero_step)) : 0.0;
	return scale | uint(clamp(128.0 + zero, 0.0, 255.0)) << 8u;
}
vec2 bytes_meaning(uint bytes, vec2 largest) {
	return vec2(float(bytes & 255u) * kv_255th(largest.x), (float(bytes >> 8u & 255u) - 128.0) * kv_127th(largest.y));
}
// Plain (scale, zero) of stored parameters: codes are computed with them.
vec2 plain_of(vec2 stored, uint bits, float shift, float shrink) {
	precise float scale = exact_divide(stored.x, shrink), moved = shift * scale * float((1u << bits) - 1u);
	precise float zero = stored.y - moved;
	return vec2(scale, zero);
}
uint code_of(float x, vec2 plain, uint bits) {
	if (!(plain.x > 0)) return 0;
	return uint(clamp(roundEven(exact_divide(x - plain.y, plain.x)), 0.0, float((1u << bits) - 1u)));
}

#endif
