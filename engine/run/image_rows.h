// Ids in a history that are no tokens of the vocabulary but rows of images.
#pragma once
#include <cstdint>

namespace kvrun {

constexpr uint32_t kFirstImageRow = 0x80000000u; // up to UINT32_MAX - 1
// The row begins a line of its image: set where rows have positions in two directions (Rope::Axes), so that these
// follow from the ids.
constexpr uint32_t kLineBegins = 0x40000000u;

constexpr bool is_image_row(uint32_t token) { return token >= kFirstImageRow && token != UINT32_MAX; }
// Consecutive in an image.
constexpr uint32_t image_row(uint32_t token) { return token & ~kLineBegins; }
constexpr bool begins_line(uint32_t token) { return is_image_row(token) && (token & kLineBegins); }

} // namespace kvrun
