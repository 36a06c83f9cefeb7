// Search for NaN and infinity in weights as they are stored.
#pragma once
#include "engine/core/dtype.h"
#include <optional>
#include <span>

namespace kvrun {

// The first element that dequantises to no finite number; `rows` is whole blocks of the type. Of most blocks
// only the scales are read: a block is as finite as they are.
std::optional<size_t> first_not_finite(DType type, std::span<const std::byte> rows);

} // namespace kvrun
