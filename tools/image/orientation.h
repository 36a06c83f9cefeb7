// How a camera was held: the orientation that JPEG files carry (Exif 2.3, tag 0x0112).
#pragma once
#include "tools/image/image_file.h"

namespace kvrun {

// 1: as it is stored .. 8; of a file without the tag, or with one that cannot be read, 1. Read here because this is the
// one tag of interest: libexif would parse all of them, of files from anywhere.
uint32_t jpeg_orientation(std::span<const std::byte> file);
// The image as it is to be seen.
Pixels upright(Pixels, uint32_t orientation);

} // namespace kvrun
