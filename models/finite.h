// Search for NaN and infinity in weights as they are stored.
#pragma once
#include "engine/core/dtype.h"
#include <optional>
#include <span>

namespace kvrun {

// The first element that does not dequantise to a finite number; `rows` consists of whole blocks of the type. For most
// types only the scales are read: a block is finite if its scales are.
std::optional<size_t> first_not_finite(DType type, std::span<const std::byte> rows);

} // namespace kvrun
