// Random weights by block: any block of a tensor can be computed separately, with the same result on every platform.
#pragma once
#include "engine/core/dtype.h"
#include <cstdint>
#include <span>

namespace kvrun {

// Fills dst with blocks [first, first + n) of a tensor whose elements have mean 0 and standard deviation `deviation`.
// stream: random stream of the tensor. Scales are normal f16 numbers, because devices differ on subnormal ones.
void synth_blocks(DType type, uint64_t stream, float deviation, uint64_t first, std::span<std::byte> dst);

} // namespace kvrun
