// Image files: PNG, JPEG and WebP, as far as their libraries were there when kvrun was built.
#pragma once
#include "engine/kvrun.h"
#include <span>
#include <string>
#include <vector>

namespace kvrun {

struct Pixels {
	uint32_t width = 0, height = 0;
	std::vector<uint8_t> rgb = {}; // (height, width, 3), the top row first
};

constexpr size_t kMostImageBytes = size_t(64) << 20;  // of a file
constexpr uint64_t kMostPixels = uint64_t(100) << 20; // of an image

// The name of the format that a file begins like; null: of none of these.
const char* image_format(std::span<const std::byte> file);
// Transparent pixels are drawn on white, JPEG images turned as their camera says. name: for messages. Throws
// StatusError{KVRUN_EFORMAT} if the file is damaged, EUNSUPPORTED for another format, a format whose library was
// absent, and an image that is too large.
Pixels decode_image(std::span<const std::byte> file, const std::string& name);
Pixels read_image(const std::string& path); // also throws EIO and ENOTFOUND
// The bytes of a text in base64, without spaces and line ends; empty for a text that is none.
std::vector<std::byte> decode_base64(std::string_view text);
// Adds an image to an engine; the id that messages name it by. Throws StatusError.
std::string add_image(kvrun_engine*, const Pixels&);

} // namespace kvrun
