// Layout of a weight row in device memory, in 16-byte pieces. Read by C++, nvcc and GLSL.
//
// A row keeps its block format's numbers and (up to padding) its size, but numbers of one kind lie together, so that a
// lane reads whole words of one kind: [codes | high bits | scales | factors]. Each part starts on a piece.
//   codes   F32, F16, BF16: the elements, zero up to a multiple of 32. CODE_BYTE: 16 signed bytes per unit of 16
//           elements. CODE_NIBBLE: 8 bytes per unit; byte 4w + c holds element 4w + c in its low nibble and element
//           8 + 4w + c in its high nibble, so (word w >> 4h) & 0x0f0f0f0f is the quad of elements 8h + 4w .. + 3.
//           CODE_BOOK and CODE_FP4: the same. CODE_PAIR: one word per unit; element 4s + c at bits 8c + 2s.
//           CODE_BIT: one word per 32 elements, like the high bits of 4 bytes; a code is twice its bit.
//   high    4 bytes: one word per 32 elements; element 4s + c at bit 8c + s.
//           8 bytes: one word per unit of 16; element 4s + c at bits 8c + 2s, two of them.
//   scales  SCALE_HALF: one f16 per 32, 64 or 128 elements. SCALE_HALF_MIN: {f16 d, f16 m} per 32. SCALE_K: one piece
//   per 256
//           elements: {f16 d, f16 dmin; low four bits of the scale of run r at 4r; the same of the mins; the upper two
//           of scale r at 2r, of min r at 16 + 2r}, runs of 32. SCALE_BYTE: one piece per 256 elements: 16 signed
//           bytes, one per unit. SCALE_BLOCK_BYTE: 8 signed bytes, one per 32 elements. SCALE_NIBBLES: one piece per
//           256 elements: one byte per unit, scale in its low nibble, min in its high one. SCALE_E8M0: 8 bytes per 256.
//           SCALE_E4M3: one piece per 256 elements, a byte per unit; NaN codes are 0 here.
//   factors SCALE_BYTE, SCALE_BLOCK_BYTE, SCALE_FACTOR: one f16 per 256 elements. SCALE_NIBBLES: {f16 d, f16 dmin}.
//           SCALE_E4M3: one f32 for the row.
#ifndef KVRUN_WEIGHT_ROW_H
#define KVRUN_WEIGHT_ROW_H
#include "shared/tensor_types.h"
#if defined(__cplusplus)
#define KV_ROW_FN constexpr
namespace kvrun {
using uint = unsigned int;
#else
#define KV_ROW_FN
#endif
// Types with grids, entries e and signs of a unit (a sign byte of 7 bits has its parity as the eighth):
//   IQ2_XXS  codes: 8 bytes per 32 elements: 4 bytes e, 4 x 7 bits of signs, 4 bits s
//   IQ2_XS   codes: 2 x {9 bits e, 7 bits of signs}. scales: 4 bits s per unit
//   IQ2_S    codes: 2 bytes e, 2 bytes of signs. high: a byte per unit: 2 x 2 upper bits of e, 4 bits s
//   IQ3_XXS  codes: 4 bytes e. high: a word per 32 elements: 4 x 7 bits of signs, 4 bits s
//   IQ3_S    codes: 4 bytes e. high: 2 bytes of signs. scales: a byte per unit: 4 upper bits of e, 4 bits s
//   IQ1_S    codes: 2 bytes e. high: 16 bits per 32 elements: 4 x 3 upper bits of e, 3 bits s, sign of the offset
//   IQ1_M    codes: 2 bytes e. high: a byte per unit: 2 x {3 upper bits of e, sign of the offset}. scales: 4 bits s
// All have one f16 factor per 256 elements.

struct WeightTraits { // columns of the table
	uint codes, code_bytes, high, scale, scale_bytes, factor_bytes, zero;
};

KV_ROW_FN uint weight_pieces(uint cols, uint elements, uint bytes) {
	return ((cols + elements - 1u) / elements * bytes + 15u) / 16u;
}
// Where each part starts, and the size of a row.
KV_ROW_FN uint weight_high_at(WeightTraits t, uint cols) { return weight_pieces(cols, 32u, 2u * t.code_bytes); }
KV_ROW_FN uint weight_scales_at(WeightTraits t, uint cols) {
	return weight_high_at(t, cols) + weight_pieces(cols, 32u, t.high);
}
KV_ROW_FN uint weight_factors_at(WeightTraits t, uint cols) {
	return weight_scales_at(t, cols) + weight_pieces(cols, 256u, t.scale_bytes);
}
KV_ROW_FN uint weight_row_pieces(WeightTraits t, uint cols) {
	return weight_factors_at(t, cols) + weight_pieces(t.scale == SCALE_E4M3 ? 1u : cols, 256u, t.factor_bytes);
}

#ifdef __cplusplus
constexpr WeightTraits weight_traits(uint type) {
#define KV_TRAITS(n, id, f, e, b, d, r, m, codes, code_bytes, high, scale, scale_bytes, factor_bytes, zero, int8)      \
	case id: return {codes, code_bytes, high, scale, scale_bytes, factor_bytes, zero};
	switch (type) { KV_TENSOR_TYPES(KV_TRAITS) }
#undef KV_TRAITS
	return {};
}
}
#endif
#endif
