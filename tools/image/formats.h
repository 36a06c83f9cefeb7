// What reads each format of images; null where its library was absent at build time.
#pragma once
#include "tools/image/image_file.h"

namespace kvrun {

using DecodeImage = Pixels (*)(std::span<const std::byte>, const std::string& name);

Pixels decode_png(std::span<const std::byte>, const std::string& name);
Pixels decode_jpeg(std::span<const std::byte>, const std::string& name);
Pixels decode_webp(std::span<const std::byte>, const std::string& name);

#ifdef KVRUN_PNG
constexpr DecodeImage kDecodePng = decode_png;
#else
constexpr DecodeImage kDecodePng = nullptr;
#endif
#ifdef KVRUN_JPEG
constexpr DecodeImage kDecodeJpeg = decode_jpeg;
#else
constexpr DecodeImage kDecodeJpeg = nullptr;
#endif
#ifdef KVRUN_WEBP
constexpr DecodeImage kDecodeWebp = decode_webp;
#else
constexpr DecodeImage kDecodeWebp = nullptr;
#endif

// Throws StatusError for sizes that are 0 or too large.
void check_pixels(uint64_t width, uint64_t height, const std::string& name);
[[noreturn]] void damaged_image(const std::string& name, std::string_view why);

} // namespace kvrun
