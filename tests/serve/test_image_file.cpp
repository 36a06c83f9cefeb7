// Image files: what their libraries read, and damaged ones (golden/vision/tile.*).
#include "engine/core/npy.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include "tools/api_call.h"
#include "tools/image/image_file.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(test_root()) / "tests" / "golden" / "vision";

std::vector<std::byte> bytes_of(const fs::path& path) {
	std::ifstream in(path, std::ios::binary);
	const std::string all{std::istreambuf_iterator<char>(in), {}};
	const auto bytes = std::as_bytes(std::span(all));
	return {bytes.begin(), bytes.end()};
}

// The status of what reading it throws; OK if nothing.
kvrun_status status_of(std::span<const std::byte> file, std::string* why = nullptr) {
	try {
		const Pixels p = decode_image(file, "x.png");
		CHECK(p.rgb.size() == size_t(p.width) * p.height * 3);
		return KVRUN_OK;
	} catch (const StatusError& e) {
		if (why) *why = e.what();
		return e.status;
	}
}

// Whether the library of this format was there when kvrun was built.
bool reads(const std::string& name) {
	std::string why;
	if (status_of(bytes_of(kGolden / name), &why) != KVRUN_EUNSUPPORTED) return true;
	MESSAGE("skipped: " << why);
	return false;
}

} // namespace

TEST_CASE("image files: PNG, WebP and JPEG have their pixels") {
	const NpyArray want = npy_read(kGolden / "mlp.pixels.npy");
	const std::span<const uint8_t> rgb = want.as<uint8_t>();
	for (const char* name : {"tile.png", "tile.webp", "tile.jpg"}) {
		CAPTURE(name);
		if (!reads(name)) continue;
		const Pixels p = read_image((kGolden / name).string());
		REQUIRE(p.width == 16);
		REQUIRE(p.height == 16);
		REQUIRE(p.rgb.size() == rgb.size());
		int worst = 0;
		for (size_t i = 0; i < rgb.size(); ++i) worst = std::max(worst, std::abs(int(p.rgb[i]) - int(rgb[i])));
		CHECK(worst <= (std::string_view(name).ends_with("jpg") ? 30 : 0)); // noise, with loss
	}
}

TEST_CASE("image files: damaged ones, other formats and those that are too large are refused in one line") {
	for (const char* name : {"tile.png", "tile.webp", "tile.jpg"}) {
		CAPTURE(name);
		const std::vector<std::byte> whole = bytes_of(kGolden / name);
		for (size_t n = 0; n < whole.size(); n += 1 + n / 16) status_of(std::span(whole).first(n));
		uint32_t random = 1;
		for (int i = 0; i < 400; ++i) {
			std::vector<std::byte> bad = whole;
			for (int k = 0; k < 3; ++k) {
				random = random * 1664525 + 1013904223;
				bad[random % bad.size()] ^= std::byte(1 << (random >> 20 & 7));
			}
			const kvrun_status s = status_of(bad);
			CHECK((s == KVRUN_OK || s == KVRUN_EFORMAT || s == KVRUN_EUNSUPPORTED));
		}
	}
	std::string why;
	std::vector<std::byte> png = bytes_of(kGolden / "tile.png");
	if (reads("tile.png")) {
		CHECK(status_of(std::span(png).first(40), &why) == KVRUN_EFORMAT);
		CHECK(why.starts_with("x.png: damaged image: "));
		CHECK(why.find('\n') == why.npos);
	}
	CHECK(status_of(std::as_bytes(std::span(std::string_view("GIF89a"))), &why) == KVRUN_EUNSUPPORTED);
	CHECK(why == "x.png: it is neither PNG, JPEG nor WebP; convert the image to one of these");
	CHECK(status_of({}) == KVRUN_EUNSUPPORTED);
	CHECK_THROWS_AS(read_image("/nowhere.png"), StatusError);
}

TEST_CASE("image files: base64") {
	const auto text = [](std::string_view t) {
		const std::vector<std::byte> b = decode_base64(t);
		return std::string(reinterpret_cast<const char*>(b.data()), b.size());
	};
	CHECK(text("TWFu") == "Man");
	CHECK(text("TWE=") == "Ma");
	CHECK(text("TQ==") == "M");
	CHECK(text("TQ") == "M");
	CHECK(text("_-8=") == text("/+8="));
	for (const char* bad : {"", "T", "TWFuT", "T!Fu", "TW Fu", "TQ=a"}) CHECK(text(bad).empty());
}
