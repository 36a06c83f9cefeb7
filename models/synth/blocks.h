// Random weights, block by block: any block of any tensor is computed alone, the same on every platform.
#pragma once
#include "engine/core/dtype.h"
#include <cstdint>
#include <span>

namespace kvrun {

// Fills dst with blocks [first, first + n) of a tensor whose elements have mean 0 and this standard deviation.
// stream: of the tensor. Scales of blocks are normal halves, whatever a device does with smaller ones.
void synth_blocks(DType type, uint64_t stream, float deviation, uint64_t first, std::span<std::byte> dst);

} // namespace kvrun
