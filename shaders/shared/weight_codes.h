// Codes and scales of weight rows (shared/weight_row.h): the arithmetic on words that GLSL and CUDA share.
#ifndef KVRUN_WEIGHT_CODES_H
#define KVRUN_WEIGHT_CODES_H
#include "shared/weight_row.h"
#ifdef __cplusplus
namespace kvrun {
#endif

// Codes of elements 4i .. 4i + 3 of a unit whose words are x and y, as unsigned bytes, without their high bits.
KV_ROW_FN uint weight_nibbles(uint x, uint y, uint i) {
	return (((i & 1u) == 0u ? x : y) >> (i < 2u ? 0u : 4u)) & 0x0f0f0f0fu;
}
// What is added to them: bit i, or the two bits from 2i on, of each byte of `word`, in front of `bits` lower ones.
KV_ROW_FN uint weight_high_bit(uint word, uint i, uint bits) { return ((word >> i) & 0x01010101u) << bits; }
KV_ROW_FN uint weight_high_bits(uint word, uint i, uint bits) { return ((word >> (2u * i)) & 0x03030303u) << bits; }

// Bytes 0 .. 2 * zero - 1 less zero, as signed ones.
KV_ROW_FN uint weight_centred(uint code, uint zero) {
	return ((code | 0x80808080u) - zero * 0x01010101u) ^ 0x80808080u;
}

// SCALE_K: scale and min of run r (32 elements), from the last three words of a piece of scales.
KV_ROW_FN uint weight_k_scale(uint low, uint upper, uint r) {
	return ((low >> (4u * r)) & 15u) | ((upper >> (2u * r)) & 3u) << 4;
}
KV_ROW_FN uint weight_k_min(uint low, uint upper, uint r) {
	return ((low >> (4u * r)) & 15u) | ((upper >> (2u * r + 16u)) & 3u) << 4;
}

#ifdef __cplusplus
}
#endif
#endif
