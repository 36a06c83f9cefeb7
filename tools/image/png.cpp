// PNG files, by libpng's simplified interface.
#include "tools/image/formats.h"
#include <png.h>

namespace kvrun {

Pixels decode_png(std::span<const std::byte> file, const std::string& name) {
	png_image image{};
	image.version = PNG_IMAGE_VERSION;
	struct Free {
		png_image& image;
		~Free() { png_image_free(&image); }
	} const free{image};
	if (!png_image_begin_read_from_memory(&image, file.data(), file.size())) damaged_image(name, image.message);
	check_pixels(image.width, image.height, name);
	image.format = PNG_FORMAT_RGB;
	Pixels out{image.width, image.height, std::vector<uint8_t>(PNG_IMAGE_SIZE(image))};
	const png_color white{255, 255, 255};
	if (!png_image_finish_read(&image, &white, out.rgb.data(), 0, nullptr)) damaged_image(name, image.message);
	return out;
}

} // namespace kvrun
