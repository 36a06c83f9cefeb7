// Image files: what their libraries read, and damaged ones (golden/vision/tile.*).
#include "engine/core/npy.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include "tools/api_call.h"
#include "tools/image/image_file.h"
#include "tools/image/orientation.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(test_root()) / "tests" / "golden" / "vision";

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
	if (status_of(file_bytes(kGolden / name), &why) != KVRUN_EUNSUPPORTED) return true;
	MESSAGE("skipped: " << why);
	return false;
}

} // namespace

// Where the first row and the first column of the file are in the image that is seen (Exif 2.3, table of the tag).
TEST_CASE("image files: JPEG images are turned as their camera says") {
	struct Seen {
		const char *row, *column;
	};
	const Seen seen[] = {{"top", "left"}, {"top", "right"}, {"bottom", "right"}, {"bottom", "left"},
	                     {"left", "top"}, {"right", "top"}, {"right", "bottom"}, {"left", "bottom"}};
	Pixels p{3, 2, std::vector<uint8_t>(18)};
	for (size_t i = 0; i < 18; ++i) p.rgb[i] = uint8_t(i / 3 + 1); // 1 2 3 / 4 5 6
	for (uint32_t o = 1; o <= 8; ++o) {
		CAPTURE(o);
		const Pixels u = upright(p, o);
		const std::string row = seen[o - 1].row, column = seen[o - 1].column;
		const bool turned = row == "left" || row == "right";
		REQUIRE(u.width == (turned ? 2 : 3));
		REQUIRE(u.height == (turned ? 3 : 2));
		const bool right = row == "right" || column == "right", bottom = row == "bottom" || column == "bottom";
		const auto at = [&](uint32_t x, uint32_t y) { return u.rgb[(y * u.width + x) * 3]; };
		const uint32_t x = right ? u.width - 1 : 0, y = bottom ? u.height - 1 : 0;
		CHECK(at(x, y) == 1);
		CHECK(at(u.width - 1 - x, u.height - 1 - y) == 6);
		CHECK(at(turned ? x : u.width - 1 - x, turned ? u.height - 1 - y : y) == 3); // the end of the first row
	}
}

TEST_CASE("image files: the orientation of a JPEG file, and hostile ones") {
	const std::string start("\xff\xd8\xff\xe0\0\4ab", 8), end("\xff\xda\0\2", 4);
	const auto exif = [](const std::string& tiff) {
		const size_t n = tiff.size() + 8;
		return std::string{'\xff', '\xe1', char(n >> 8), char(n)} + std::string("Exif\0\0", 6) + tiff;
	};
	const auto read = [](const std::string& file) { return jpeg_orientation(std::as_bytes(std::span(file))); };
	const std::string little("II*\0\10\0\0\0\2\0\0\1\3\0\1\0\0\0\7\0\0\0\x12\1\3\0\1\0\0\0\6\0\0\0", 34);
	const std::string big("MM\0*\0\0\0\10\0\1\1\x12\0\3\0\0\0\1\0\3\0\0", 22);
	CHECK(read(start + exif(little) + end) == 6);
	CHECK(read(start + exif(big) + end) == 3);
	CHECK(read(start + end) == 1);
	CHECK(read(start + end + exif(big)) == 1); // behind the scan
	for (const std::string& tiff : {little, big}) {
		const std::string whole = start + exif(tiff) + end;
		for (size_t n = 0; n < whole.size(); ++n) CHECK(read(whole.substr(0, n)) <= 8);
		for (size_t at = start.size(); at < whole.size(); ++at)
			for (const char c : {'\0', '\1', '\x7f', '\xff'}) {
				std::string damaged = whole;
				damaged[at] = c;
				const uint32_t o = read(damaged);
				CHECK((o >= 1 && o <= 8));
			}
	}
	if (!reads("tile.jpg")) return;
	const std::vector<std::byte> file = file_bytes(kGolden / "tile.jpg");
	const std::string turn = exif(big);
	std::vector<std::byte> turned(file.begin(), file.begin() + 2);
	for (const char c : turn) turned.push_back(std::byte(c));
	turned.insert(turned.end(), file.begin() + 2, file.end());
	const Pixels a = decode_image(file, "a"), b = decode_image(turned, "b");
	CHECK(b.rgb == upright(a, 3).rgb);
	CHECK(b.rgb != a.rgb);
}

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
		const std::vector<std::byte> whole = file_bytes(kGolden / name);
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
	std::vector<std::byte> png = file_bytes(kGolden / "tile.png");
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
