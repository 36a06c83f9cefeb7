// Converts GGUF rows to the rows of shaders/shared/weight_row.h, for any backend whose kernels read those.
#pragma once
#include "backends/memory.h"
#include <cstddef>
#include <functional>
#include <span>

namespace kvrun {

size_t device_row_bytes(DType, uint32_t cols);
size_t device_weight_bytes(const View& w); // of all rows of w: {rows, columns...}
// Rows of `cols` elements, a multiple of the block. dst has device_row_bytes() for each row of src; all of it is
// written.
void to_device_rows(DType, uint32_t cols, const WeightRows& src, std::span<std::byte> dst);
// Writes rows [row, row + n) of weight w through write(byte of the buffer, bytes): `arranged`, or if that is empty, src
// converted a few MiB at a time. Implements Backend::write_weight() of such a backend.
void write_device_rows(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                       std::span<const std::byte> arranged,
                       const std::function<void(size_t at, std::span<const std::byte>)>& write);

} // namespace kvrun
