// The table of tensor types: what every part of kvrun knows about a GGML type. Read by C++, nvcc and GLSL.
//
// A new type is a row here, a function of engine/core/block_quant.cpp (its definition), one of backends/weight_rows.cpp
// (a row on its way to a device) and golden blocks in tests/golden/quant. Where no row of CODE_* or SCALE_* describes
// it, also that kind: its arithmetic in shared/weight_codes.h, its loads in lib/unpack_weights.glsl and
// cuda/weights.cuh.
//
// X(name, id, file,  elements, bytes,  scales_at, rms, middle,  codes, code_bytes, high,  scale, scale_bytes,
// factor_bytes,
//   zero, int8)
//   id            number of the type in a GGUF file, and of DType
//   file          general.file_type of a file whose matrices are mostly of this type
//   elements, bytes     of a block in a file
//   scales_at     where the f16 factor d of a block lies, and 2 bytes further on dmin or m where `middle` is not 0; -1:
//   no d rms           root mean square of the elements of a block with d = 1 and any other bytes middle        dmin /
//   d, or -m / d, with which the elements of such a block have mean 0; 0: there is no second factor codes CODE_*: how
//   16 elements (a unit) lie in a device row, which shared/weight_row.h describes code_bytes    of a unit;  high:
//   further bytes of 32 elements (a block of a device row) scale         SCALE_*: what codes are multiplied with;
//   scale_bytes, factor_bytes: of 256 elements zero          the code of 0, where codes count from below the smallest
//   element int8          1: kernels of integer dot products take it, 0: they do not
#ifndef KVRUN_TENSOR_TYPES_H
#define KVRUN_TENSOR_TYPES_H

#define CODE_F32 0u
#define CODE_F16 1u
#define CODE_BF16 2u
#define CODE_BYTE 3u   // signed
#define CODE_NIBBLE 4u // with one more bit where `high` is 4, two more where it is 8

#define SCALE_NONE 0u
#define SCALE_HALF 1u     // f16 d of each 32 elements
#define SCALE_HALF_MIN 2u // {f16 d, f16 m}: element = d * code + m
#define SCALE_K 3u        // of 256 elements {d, dmin}, and six bits of scale and of min for each 32
#define SCALE_BYTE 4u     // a signed byte for each 16 elements, times the f16 factor of 256

// clang-format off
#define KV_TENSOR_TYPES(X) \
	X(F32,      0,  0,    1,   4,   -1,  1.0f,    0.0f,  CODE_F32,    64u, 0u,  SCALE_NONE,      0u, 0u,   0u, 0) \
	X(F16,      1,  1,    1,   2,   -1,  1.0f,    0.0f,  CODE_F16,    32u, 0u,  SCALE_NONE,      0u, 0u,   0u, 0) \
	X(BF16,    30, 32,    1,   2,   -1,  1.0f,    0.0f,  CODE_BF16,   32u, 0u,  SCALE_NONE,      0u, 0u,   0u, 0) \
	X(Q8_0,     8,  7,   32,  34,    0,  73.9f,   0.0f,  CODE_BYTE,   16u, 0u,  SCALE_HALF,     16u, 0u,   0u, 1) \
	X(Q4_0,     2,  2,   32,  18,    0,  4.61f,   0.0f,  CODE_NIBBLE,  8u, 0u,  SCALE_HALF,     16u, 0u,   8u, 1) \
	X(Q4_1,     3,  3,   32,  20,    0,  4.61f,   7.5f,  CODE_NIBBLE,  8u, 0u,  SCALE_HALF_MIN, 32u, 0u,   0u, 1) \
	X(Q4_K,    12, 14,  256, 144,    0,  361.0f,  7.5f,  CODE_NIBBLE,  8u, 0u,  SCALE_K,        16u, 0u,   0u, 1) \
	X(Q5_K,    13, 16,  256, 176,    0,  732.0f, 15.5f,  CODE_NIBBLE,  8u, 4u,  SCALE_K,        16u, 0u,   0u, 1) \
	X(Q6_K,    14, 18,  256, 210,  208,  1366.0f, 0.0f,  CODE_NIBBLE,  8u, 8u,  SCALE_BYTE,     16u, 2u,  32u, 1)
// clang-format on

#endif
