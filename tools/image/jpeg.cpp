// JPEG files, by libjpeg-turbo.
#include "tools/image/formats.h"
#include "tools/image/orientation.h"
#include <memory>
#include <turbojpeg.h>

namespace kvrun {

Pixels decode_jpeg(std::span<const std::byte> file, const std::string& name) {
	const std::unique_ptr<void, int (*)(tjhandle)> jpeg(tjInitDecompress(), tjDestroy);
	if (!jpeg) damaged_image(name, "libjpeg-turbo does not start");
	const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
	int width = 0, height = 0, sampling = 0, colours = 0;
	if (tjDecompressHeader3(jpeg.get(), bytes, file.size(), &width, &height, &sampling, &colours) != 0)
		damaged_image(name, tjGetErrorStr2(jpeg.get()));
	check_pixels(uint64_t(width), uint64_t(height), name);
	Pixels out{uint32_t(width), uint32_t(height), std::vector<uint8_t>(size_t(width) * size_t(height) * 3)};
	if (tjDecompress2(jpeg.get(), bytes, file.size(), out.rgb.data(), width, 0, height, TJPF_RGB,
	                  TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0 &&
	    tjGetErrorCode(jpeg.get()) == TJERR_FATAL)
		damaged_image(name, tjGetErrorStr2(jpeg.get()));
	return upright(std::move(out), jpeg_orientation(file));
}

} // namespace kvrun
