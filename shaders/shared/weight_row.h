// Layout of a weight row in device memory, in 16-byte pieces. Read by C++ and GLSL.
//
// A row keeps its block format's numbers and (up to padding) its size, but like things lie together, so that a lane
// reads whole words of one kind: [codes | high bits | scales | block factors], each part starting on a piece.
//   codes   F32, F16, BF16: the elements, zero up to a multiple of 32. Q8_0: 16 signed bytes per unit of 16 elements.
//           4-bit and wider formats: 8 bytes per unit; byte 4w + c holds element 4w + c in its low nibble and element
//           8 + 4w + c in its high nibble, so (word w >> 4h) & 0x0f0f0f0f is the quad of elements 8h + 4w .. + 3.
//   high    Q5_K: one word per 32 elements; element 4s + c at bit 8c + s.
//           Q6_K: one word per unit of 16; element 4s + c at bits 8c + 2s, two of them.
//   scales  Q8_0, Q4_0: one f16 per 32 elements. Q4_K, Q5_K: one piece per 256 elements: {f16 d, f16 dmin; low four
//           bits of the scale of run r at 4r; the same of the mins; the upper two of scale r at 2r, of min r at 16 +
//           2r}, runs of 32. Q6_K: one piece per 256 elements: 16 signed bytes, one per unit.
//   factors Q6_K: one f16 per 256 elements.
#ifndef KVRUN_WEIGHT_ROW_H
#define KVRUN_WEIGHT_ROW_H
#if defined(__cplusplus)
#define KV_ROW_FN constexpr
namespace kvrun {
using uint = unsigned int;
#else
#define KV_ROW_FN
#endif

#define W_F32 0u // values of DType
#define W_F16 1u
#define W_BF16 2u
#define W_Q8_0 4u
#define W_Q4_0 5u
#define W_Q4_K 6u
#define W_Q5_K 7u
#define W_Q6_K 8u

KV_ROW_FN uint weight_code_pieces(uint type, uint cols) {
	return type == W_F32    ? (cols + 31u) / 32u * 8u
	       : type <= W_BF16 ? (cols + 31u) / 32u * 4u
	       : type == W_Q8_0 ? cols / 16u
	                        : cols / 32u;
}
KV_ROW_FN uint weight_high_pieces(uint type, uint cols) {
	return type == W_Q5_K ? cols / 128u : type == W_Q6_K ? cols / 64u : 0u;
}
KV_ROW_FN uint weight_scale_pieces(uint type, uint cols) { return type <= W_BF16 ? 0u : (cols + 255u) / 256u; }
KV_ROW_FN uint weight_factor_pieces(uint type, uint cols) { return type == W_Q6_K ? (cols + 2047u) / 2048u : 0u; }
// Where each part starts, and the size of a row.
KV_ROW_FN uint weight_high_at(uint type, uint cols) { return weight_code_pieces(type, cols); }
KV_ROW_FN uint weight_scales_at(uint type, uint cols) {
	return weight_code_pieces(type, cols) + weight_high_pieces(type, cols);
}
KV_ROW_FN uint weight_factors_at(uint type, uint cols) {
	return weight_scales_at(type, cols) + weight_scale_pieces(type, cols);
}
KV_ROW_FN uint weight_row_pieces(uint type, uint cols) {
	return weight_factors_at(type, cols) + weight_factor_pieces(type, cols);
}

#ifdef __cplusplus
}
#endif
#endif
