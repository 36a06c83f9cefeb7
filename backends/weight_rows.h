// GGUF rows to the rows of shaders/shared/weight_row.h, for any backend whose kernels read those.
#pragma once
#include "engine/core/dtype.h"
#include <cstddef>
#include <span>

namespace kvrun {

size_t device_row_bytes(DType, uint32_t cols);
// One row of `cols` elements; dst has device_row_bytes() of room, all of which is written. cols is a multiple of the
// block.
void to_device_row(DType, uint32_t cols, const std::byte* src, std::byte* dst);
// All rows of src.
void to_device_rows(DType, uint32_t cols, std::span<const std::byte> src, std::span<std::byte> dst);

} // namespace kvrun
