// The grids of GGML's IQ types in the layout of the kernels; shared/weight_codes.h has the start of each.
#pragma once
#include <cstdint>
#include <span>

namespace kvrun {

std::span<const uint32_t> iq_grids(); // GRID_WORDS words

} // namespace kvrun
