// GGUF blocks and plain element types -> float: the definition against which every backend's decoding is tested.
#pragma once
#include "engine/core/dtype.h"
#include <cstddef>

namespace kvrun {

// dst[0 .. n) = the n elements stored at src in GGUF layout (src needs no alignment). n is a multiple of the type's
// block size. Every operation is rounded once to float32, in the order written in block_quant.cpp, and none are fused,
// so the result has the same bits on every platform. Not defined for DType::U32, which is not a numeric type of models.
void dequantise_row(DType type, const std::byte* src, float* dst, size_t n);

} // namespace kvrun
