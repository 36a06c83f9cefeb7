// Images: sizes are changed as Pillow does (golden/vision/resize.*.npy, tools/dev/make_vision_models.py).
#include "engine/core/image.h"
#include "engine/core/npy.h"
#include "models/vision.h"
#include "tests/support/assets.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>

using namespace kvrun;

namespace {

Image test_image(uint32_t width, uint32_t height) {
	Image image(width, height);
	for (uint32_t y = 0; y < height; ++y)
		for (uint32_t x = 0; x < width; ++x)
			for (uint32_t c = 0; c < 3; ++c)
				image.rgb[(y * width + x) * 3 + c] = uint8_t(x * 7 + y * 13 + c * 50 + x * y % 31 * 3);
	return image;
}

} // namespace

TEST_CASE("image: another size gives the bits of Pillow") {
	const std::pair<const char*, Resample> all[] = {
	    {"bilinear", Resample::Bilinear}, {"bicubic", Resample::Bicubic}, {"lanczos", Resample::Lanczos}};
	for (const auto& filter : all) {
		const char* name = filter.first;
		CAPTURE(name);
		const NpyArray want = npy_read(std::filesystem::path(test_root()) / "tests" / "golden" / "vision" /
		                               (std::string("resize.") + name + ".npy"));
		const Image got = resized(test_image(37, 23), uint32_t(want.shape[1]), uint32_t(want.shape[0]), filter.second);
		CHECK(std::ranges::equal(got.rgb, want.as<uint8_t>()));
	}
}

TEST_CASE("image: fitted into a size, with a border; parts") {
	const Image image = test_image(30, 10), out = fitted(image, 20, 20, Resample::Bicubic, {1, 2, 3});
	CHECK(out.width == 20);
	CHECK(out.rgb[0] == 1);
	CHECK(out.rgb[2] == 3);
	CHECK(out.rgb[out.rgb.size() - 2] == 2);
	const Image inner = resized(image, 20, 7, Resample::Bicubic);
	CHECK(std::equal(inner.rgb.begin(), inner.rgb.end(), out.rgb.begin() + 6 * 20 * 3));
	const Image part = cropped(image, 5, 2, 3, 4);
	for (uint32_t y = 0; y < 4; ++y)
		for (uint32_t i = 0; i < 9; ++i) CHECK(part.rgb[y * 9 + i] == image.rgb[((y + 2) * 30 + 5) * 3 + i]);
	CHECK(resized(image, 30, 10, Resample::Lanczos).rgb == image.rgb);
}

TEST_CASE("image: tiles of every encoder have sizes it takes, for images of any shape") {
	for (const Projector& p : projectors()) {
		VisionConfig v;
		v.projector = &p, v.image_size = v.square = 32, v.patch = 4, v.merge = 2, v.longest_edge = 100;
		v.least_rows = p.least_rows, v.most_rows = p.most_rows;
		for (const auto& size : {std::pair(1u, 1u), {1u, 3000u}, {3000u, 1u}, {31u, 33u}, {500u, 700u}, {2000u, 90u}}) {
			CAPTURE(p.name);
			const uint32_t w = size.first, h = size.second;
			CAPTURE(w);
			CAPTURE(h);
			const TiledImage t = tile_image(v, test_image(w, h));
			REQUIRE(!t.tiles.empty());
			CHECK(t.tiles.size() <= 18);
			for (const TiledImage::Tile& tile : t.tiles) {
				CHECK(tile.pixels.width % v.align() == 0);
				CHECK(tile.pixels.height % v.align() == 0);
				CHECK(v.rows(tile.pixels.width, tile.pixels.height) >= 1);
				const bool slices = p.tiling == Tiling::Slices; // of any size
				const uint32_t most = slices ? v.most_patches() / (v.merge * v.merge) : 16;
				CHECK(v.rows(tile.pixels.width, tile.pixels.height) <= std::max(p.most_rows, most));
				if (!p.most_rows && !slices) CHECK(tile.pixels.width == 32);
			}
		}
	}
}
