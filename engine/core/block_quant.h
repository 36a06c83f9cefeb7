// GGUF blocks and plain element types -> float: the definition every backend's decoding is tested against.
#pragma once
#include "engine/core/dtype.h"
#include <cstddef>

namespace kvrun {

// dst[0 .. n) = the n elements stored at src in GGUF layout (src needs no alignment). n is a multiple of the type's
// block size. Every operation is one float32 rounding in the order written in block_quant.cpp, nothing is fused, so
// the result is the same bits on every platform. Not defined for DType::U32, which holds no real numbers.
void dequantise_row(DType type, const std::byte* src, float* dst, size_t n);

} // namespace kvrun
