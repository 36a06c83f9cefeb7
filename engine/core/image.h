// Images in memory, and how their size is changed.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvrun {

using Rgb = std::array<uint8_t, 3>;

struct Image {
	uint32_t width = 0, height = 0;
	std::vector<uint8_t> rgb = {}; // (height, width, 3), row 0 is the top

	Image() = default;
	Image(uint32_t w, uint32_t h) : width(w), height(h), rgb(std::size_t(w) * h * 3) {}
	Image(uint32_t w, uint32_t h, Rgb colour); // all of one colour
};

enum class Resample : uint8_t { Bilinear, Bicubic, Lanczos }; // support of 1, 2 and 3 pixels

// The image with another size: a filter in each direction, wider where pixels are joined, with weights rounded to 22
// bits and a result in 8 bits between both directions, the horizontal one first. These are Pillow's rules (until
// version 12), which preprocessors of vision models were published with; results are the same to the bit. Sizes must
// not be 0.
Image resized(const Image&, uint32_t width, uint32_t height, Resample);
// As large as fits into the size without a change of shape, in the middle of an image of one colour.
Image fitted(const Image&, uint32_t width, uint32_t height, Resample, Rgb colour);
// The image in the top left corner of an image of one colour, which is at least as large.
Image extended(const Image&, uint32_t width, uint32_t height, Rgb colour);
// The part of the image that begins at (x, y), all of it inside.
Image cropped(const Image&, uint32_t x, uint32_t y, uint32_t width, uint32_t height);

} // namespace kvrun
