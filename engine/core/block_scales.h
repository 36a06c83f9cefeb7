// The factors of a GGUF block: where they lie, whether they are finite, and blocks of any codes with factors that fit.
#pragma once
#include "engine/core/dtype.h"

namespace kvrun {

// The first element of a block of a quantised type that is not finite, or -1. All are if its factors are, except where
// those are powers of two, whose products may overflow.
int first_not_finite_of_block(DType type, const std::byte* block);

// Sets the factors of a block of any other bytes so that its elements have about this root mean square and mean 0. A
// type whose factors are powers of two gets the one below or the one above: `draw`, from 0 to 1, decides, so that many
// blocks together have this root mean square.
void set_block_scales(DType type, std::byte* block, float rms, float draw = 0.5f);

} // namespace kvrun
