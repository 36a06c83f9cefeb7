// The table of tensor types: all that kvrun knows about each GGML type. Read by C++, nvcc and GLSL.
//
// A new type needs a row here, a function of engine/core/block_quant.cpp (its definition), one of
// backends/weight_rows.cpp (repacks a row for a device) and golden blocks in tests/golden/quant. If none of CODE_* or
// SCALE_* describes it, it also needs a new kind: arithmetic in shared/weight_codes.h, loads in lib/unpack_weights.glsl
// and cuda/weights.cuh.
//
// X(name, id, file,  elements, bytes,  scales_at, rms, middle,  codes, code_bytes, high,  scale, scale_bytes,
//   factor_bytes, zero, int8)
//   id            number of the type in a GGUF file, and of DType; with KV_SECOND_FORMAT: larger blocks under the same
//                 number (Q2_0 as the makers of Bonsai models write it), which the sizes in the file tell from the
//                 others
//   file          general.file_type of a file whose matrices are mostly of this type
//   elements, bytes     of a block in a file
//   scales_at     where the f16 factor d of a block lies (SCALE_E8M0: its byte; SCALE_E4M3: 4 bytes, one for each 16
//                 elements; IQ1_M: 8 bytes with a nibble of it in every second one), and 2 bytes further on dmin or m
//                 where `middle` is not 0; -1: no d
//   rms           root mean square of the elements of a block with d = 1 and any other bytes
//   middle        dmin / d, or -m / d, with which the elements of such a block have mean 0; 0: no second factor
//   codes         CODE_*: how 16 elements (a unit) lie in a device row, which shared/weight_row.h describes
//   code_bytes    of a unit;  high: further bytes of 32 elements (a block of a device row)
//   scale         SCALE_*: what codes are multiplied with;  scale_bytes, factor_bytes: of 256 elements (SCALE_E4M3:
//                 factor_bytes of a row)
//   zero          the code of 0, where codes count from below the smallest element
//   int8          1: kernels of integer dot products take it, 0: they do not
#ifndef KVRUN_TENSOR_TYPES_H
#define KVRUN_TENSOR_TYPES_H

#define CODE_F32 0u
#define CODE_F16 1u
#define CODE_BF16 2u
#define CODE_BYTE 3u   // signed
#define CODE_NIBBLE 4u // with one more bit where `high` is 4, two more where it is 8
#define CODE_PAIR 5u   // two bits, with one more where `high` is 4
#define CODE_BOOK 6u   // indices into the 16 values of IQ4_NL
#define CODE_FP4 7u    // 4-bit floats, as twice their values
// Indices into a table of 8 (IQ3: 4) elements, the grid, and signs. Kernels that read grids are separate builds.
#define CODE_IQ2_XXS 8u
#define CODE_IQ2_XS 9u
#define CODE_IQ2_S 10u
#define CODE_IQ3_XXS 11u
#define CODE_IQ3_S 12u
#define CODE_IQ1_S 13u
#define CODE_IQ1_M 14u
#define CODE_BIT 15u // 0 or 2

#define SCALE_NONE 0u
#define SCALE_HALF 1u        // f16 d of each 32 elements; of 64 or 128 where scale_bytes is 8 or 4
#define SCALE_HALF_MIN 2u    // {f16 d, f16 m}: element = d * code + m
#define SCALE_K 3u           // of 256 elements {d, dmin}, and six bits of scale and of min for each 32
#define SCALE_BYTE 4u        // a signed byte for each 16 elements, times the f16 factor of 256
#define SCALE_BLOCK_BYTE 5u  // the same for each 32 elements
#define SCALE_NIBBLES 6u     // for each 16 elements four bits of scale and four of min, times {f16 d, f16 dmin} of 256
#define SCALE_E8M0 7u        // for each 32 elements a byte, the exponent of a power of two; half of it is taken
#define SCALE_FACTOR 8u      // the f16 factor of 256 elements only
#define SCALE_ODD 9u         // grids: f16 factor of 256 elements times 2s + 1, s a small number for each 32
#define SCALE_ODD_HALVES 10u // the same, s for each 16
#define SCALE_E4M3 11u // an unsigned E4M3 byte for each 16 elements, half of it is taken; times the row's f32 factor

#define KV_SECOND_FORMAT 128u

// clang-format off
#define KV_TENSOR_TYPES(X) \
	X(F32,      0,  0,    1,   4,   -1,     1.0f,  0.0f,  CODE_F32,    64u, 0u,  SCALE_NONE,        0u, 0u,   0u, 0) \
	X(F16,      1,  1,    1,   2,   -1,     1.0f,  0.0f,  CODE_F16,    32u, 0u,  SCALE_NONE,        0u, 0u,   0u, 0) \
	X(BF16,    30, 32,    1,   2,   -1,     1.0f,  0.0f,  CODE_BF16,   32u, 0u,  SCALE_NONE,        0u, 0u,   0u, 0) \
	X(Q8_0,     8,  7,   32,  34,    0,    73.9f,  0.0f,  CODE_BYTE,   16u, 0u,  SCALE_HALF,       16u, 0u,   0u, 1) \
	X(Q4_0,     2,  2,   32,  18,    0,    4.61f,  0.0f,  CODE_NIBBLE,  8u, 0u,  SCALE_HALF,       16u, 0u,   8u, 1) \
	X(Q4_1,     3,  3,   32,  20,    0,    4.61f,  7.5f,  CODE_NIBBLE,  8u, 0u,  SCALE_HALF_MIN,   32u, 0u,   0u, 1) \
	X(Q5_0,     6,  8,   32,  22,    0,    9.24f,  0.0f,  CODE_NIBBLE,  8u, 4u,  SCALE_HALF,       16u, 0u,  16u, 1) \
	X(Q5_1,     7,  9,   32,  24,    0,    9.23f, 15.5f,  CODE_NIBBLE,  8u, 4u,  SCALE_HALF_MIN,   32u, 0u,   0u, 1) \
	X(Q2_K,    10, 10,  256,  84,   80,    13.9f,  1.5f,  CODE_PAIR,    4u, 0u,  SCALE_NIBBLES,    16u, 4u,   0u, 0) \
	X(Q3_K,    11, 11,  256, 110,  108,    43.4f,  0.0f,  CODE_PAIR,    4u, 4u,  SCALE_BYTE,       16u, 2u,   4u, 1) \
	X(Q4_K,    12, 14,  256, 144,    0,   258.0f,  7.5f,  CODE_NIBBLE,  8u, 0u,  SCALE_K,          16u, 0u,   0u, 1) \
	X(Q5_K,    13, 16,  256, 176,    0,   526.0f, 15.5f,  CODE_NIBBLE,  8u, 4u,  SCALE_K,          16u, 0u,   0u, 1) \
	X(Q6_K,    14, 18,  256, 210,  208,  1366.0f,  0.0f,  CODE_NIBBLE,  8u, 8u,  SCALE_BYTE,       16u, 2u,  32u, 1) \
	X(IQ4_NL,  20, 25,   32,  18,    0,    67.4f,  0.0f,  CODE_BOOK,    8u, 0u,  SCALE_HALF,       16u, 0u,   0u, 1) \
	X(IQ4_XS,  23, 30,  256, 136,    0,  1246.0f,  0.0f,  CODE_BOOK,    8u, 0u,  SCALE_BLOCK_BYTE,  8u, 2u,   0u, 1) \
	X(MXFP4,   39, 38,   32,  17,    0,    5.85f,  0.0f,  CODE_FP4,     8u, 0u,  SCALE_E8M0,        8u, 0u,   0u, 1) \
	X(NVFP4,   40, 39,   64,  36,    0,    5.85f,  0.0f,  CODE_FP4,     8u, 0u,  SCALE_E4M3,       16u, 4u,   0u, 1) \
	X(IQ3_S,   21, 26,  256, 110,    0,   140.3f,  0.0f,  CODE_IQ3_S,    4u, 4u,  SCALE_ODD,        16u, 2u,   0u, 1) \
	X(IQ3_XXS, 18, 23,  256,  98,    0,   142.7f,  0.0f,  CODE_IQ3_XXS,  4u, 4u,  SCALE_ODD,         0u, 2u,   0u, 1) \
	X(IQ2_S,   22, 28,  256,  82,    0,    56.4f,  0.0f,  CODE_IQ2_S,    4u, 2u,  SCALE_ODD_HALVES,  0u, 2u,   0u, 1) \
	X(IQ2_XS,  17, 20,  256,  74,    0,    55.9f,  0.0f,  CODE_IQ2_XS,   4u, 0u,  SCALE_ODD_HALVES,  8u, 2u,   0u, 1) \
	X(IQ2_XXS, 16, 19,  256,  66,    0,    53.4f,  0.0f,  CODE_IQ2_XXS,  4u, 0u,  SCALE_ODD,         0u, 2u,   0u, 1) \
	X(IQ1_M,   29, 31,  256,  56,   48,    7.19f,  0.0f,  CODE_IQ1_M,    2u, 2u,  SCALE_ODD_HALVES,  8u, 2u,   0u, 1) \
	X(IQ1_S,   19, 24,  256,  50,    0,    7.20f,  0.0f,  CODE_IQ1_S,    2u, 2u,  SCALE_ODD,         0u, 2u,   0u, 1) \
	X(TQ1_0,   34, 36,  256,  54,   52,   0.817f,  0.0f,  CODE_PAIR,    4u, 0u,  SCALE_FACTOR,      0u, 2u,   1u, 1) \
	X(TQ2_0,   35, 37,  256,  66,   64,   1.225f,  0.0f,  CODE_PAIR,    4u, 0u,  SCALE_FACTOR,      0u, 2u,   1u, 1) \
	X(Q1_0,    41, 40,  128,  18,    0,     1.0f,  0.0f,  CODE_BIT,    2u, 0u,  SCALE_HALF,        4u, 0u,   1u, 1) \
	X(Q2_0,    42, 41,   64,  18,    0,   1.225f,  0.0f,  CODE_PAIR,   4u, 0u,  SCALE_HALF,        8u, 0u,   1u, 1) \
	X(Q2_0_128, 170, 41, 128, 34,    0,   1.225f,  0.0f,  CODE_PAIR,   4u, 0u,  SCALE_HALF,        4u, 0u,   1u, 1)
// clang-format on

#endif
