// The scales of a GGUF block: checks whether they are finite, and sets them for a block of random codes.
#pragma once
#include "engine/core/dtype.h"

namespace kvrun {

// The first element of a block of a quantised type that is not finite, or -1. If the scales are finite, so are all
// elements, except that products with a power-of-two scale may overflow. A NaN code of E4M3 counts, though
// dequantise_row() reads 0 there.
int first_not_finite_of_block(DType type, const std::byte* block);

// Sets the scales of a block with random codes so that its elements have about this root mean square and mean 0. A type
// with scales of few bits gets the one below or above: `draw`, from 0 to 1, decides, so that many blocks together have
// this root mean square.
void set_block_scales(DType type, std::byte* block, float rms, float draw = 0.5f);

} // namespace kvrun
