// The grids of GGML's IQ types as kernels read them: shared/weight_codes.h says where each begins.
#pragma once
#include <cstdint>
#include <span>

namespace kvrun {

std::span<const uint32_t> iq_grids(); // GRID_WORDS words

} // namespace kvrun
