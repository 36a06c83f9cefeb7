// WebP files, by libwebp.
#include "tools/image/formats.h"
#include <webp/decode.h>

namespace kvrun {

Pixels decode_webp(std::span<const std::byte> file, const std::string& name) {
	const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
	WebPBitstreamFeatures about;
	if (WebPGetFeatures(bytes, file.size(), &about) != VP8_STATUS_OK) damaged_image(name, "its header is wrong");
	if (about.has_animation) damaged_image(name, "it is an animation; give one picture");
	check_pixels(uint64_t(about.width), uint64_t(about.height), name);
	const size_t n = size_t(about.width) * size_t(about.height);
	std::vector<uint8_t> rgba(n * 4);
	if (!WebPDecodeRGBAInto(bytes, file.size(), rgba.data(), rgba.size(), about.width * 4))
		damaged_image(name, "its data is wrong");
	Pixels out{uint32_t(about.width), uint32_t(about.height), std::vector<uint8_t>(n * 3)};
	for (size_t i = 0; i < n; ++i)
		for (size_t c = 0; c < 3; ++c) {
			const unsigned a = rgba[i * 4 + 3];
			out.rgb[i * 3 + c] = uint8_t((rgba[i * 4 + c] * a + 255 * (255 - a) + 127) / 255);
		}
	return out;
}

} // namespace kvrun
