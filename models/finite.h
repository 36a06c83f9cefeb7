// Search for NaN and infinity in weights as they are stored.
#pragma once
#include "engine/core/dtype.h"
#include <optional>
#include <span>

namespace kvrun {

// The first element that dequantises to no finite number; `rows` is whole blocks of the type. A block is as finite as
// its scales, which are all that is read of it.
std::optional<size_t> first_not_finite(DType type, std::span<const std::byte> rows);

} // namespace kvrun
