// The factors of a GGUF block: where they lie, whether they are finite, and blocks of any codes with factors that fit.
#pragma once
#include "engine/core/dtype.h"

namespace kvrun {

// Whether all elements of a block of a quantised type are finite: they are if its factors are.
bool block_is_finite(DType type, const std::byte* block);

// Sets the factors of a block of any other bytes so that its elements have about this root mean square and mean 0.
void set_block_scales(DType type, std::byte* block, float rms);

} // namespace kvrun
