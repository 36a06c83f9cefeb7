// Image files in memory.
#include "tools/image/image_file.h"
#include "tools/api_call.h"
#include "tools/audio/audio_file.h"
#include "tools/image/formats.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <algorithm>
#include <cstring>

namespace kvrun {
namespace {

struct Format {
	const char* name;
	bool (*begins)(std::span<const std::byte>);
	Pixels (*decode)(std::span<const std::byte>, const std::string& name); // null: not built in
	const char* library;
};

bool has(std::span<const std::byte> file, size_t at, std::string_view text) {
	return file.size() >= at + text.size() && std::memcmp(file.data() + at, text.data(), text.size()) == 0;
}

constexpr Format kFormats[] = {
    {"PNG", [](std::span<const std::byte> f) { return has(f, 0, "\x89PNG\r\n\x1a\n"); }, kDecodePng, "libpng"},
    {"JPEG", [](std::span<const std::byte> f) { return has(f, 0, "\xff\xd8\xff"); }, kDecodeJpeg, "libjpeg-turbo"},
    {"WebP", [](std::span<const std::byte> f) { return has(f, 0, "RIFF") && has(f, 8, "WEBP"); }, kDecodeWebp,
     "libwebp"},
};

} // namespace

void check_pixels(uint64_t width, uint64_t height, const std::string& name) {
	if (width == 0 || height == 0) damaged_image(name, "it has no pixels");
	if (width > kMostPixels || height > kMostPixels || width * height > kMostPixels)
		fail_status(KVRUN_EUNSUPPORTED, "{}: {} x {} pixels are more than {} million; make the image smaller", name,
		            width, height, kMostPixels >> 20);
}

void damaged_image(const std::string& name, std::string_view why) {
	fail_status(KVRUN_EFORMAT, "{}: damaged image: {}", name, why);
}

const char* image_format(std::span<const std::byte> file) {
	for (const Format& f : kFormats)
		if (f.begins(file)) return f.name;
	return nullptr;
}

Pixels decode_image(std::span<const std::byte> file, const std::string& name) {
	for (const Format& f : kFormats) {
		if (!f.begins(file)) continue;
		if (!f.decode)
			fail_status(KVRUN_EUNSUPPORTED, "{}: this kvrun was built without {}, which reads {}", name, f.library,
			            f.name);
		return f.decode(file, name);
	}
	if (const char* sound = audio_format(file))
		fail_status(KVRUN_EUNSUPPORTED, "{}: it is a sound ({}), no image; give it as audio", name, sound);
	fail_status(KVRUN_EUNSUPPORTED, "{}: it is neither PNG, JPEG nor WebP; convert the image to one of these", name);
}

Pixels read_image(const std::string& path) {
	const std::string file = read_text_file(path, kMostImageBytes);
	return decode_image(std::as_bytes(std::span(file)), path);
}

std::vector<std::byte> decode_base64(std::string_view text) {
	const auto value = [](char c) -> int {
		if (c >= 'A' && c <= 'Z') return c - 'A';
		if (c >= 'a' && c <= 'z') return c - 'a' + 26;
		if (c >= '0' && c <= '9') return c - '0' + 52;
		return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
	};
	while (text.ends_with('=')) text.remove_suffix(1);
	std::vector<std::byte> out;
	if (text.size() % 4 == 1) return out;
	out.reserve(text.size() / 4 * 3 + 2);
	uint32_t bits = 0;
	for (size_t i = 0; i < text.size(); ++i) {
		const int v = value(text[i]);
		if (v < 0) return {};
		bits = bits << 6 | uint32_t(v);
		const size_t in_group = i % 4;
		if (in_group > 0) out.push_back(std::byte(bits >> (6 - 2 * in_group) & 255));
	}
	return out;
}

std::string add_image(kvrun_engine* engine, const Pixels& p) {
	uint64_t id = 0;
	check_call(kvrun_image_add(engine, p.rgb.data(), p.width, p.height, &id));
	return fmt::format("{:016x}", id);
}

} // namespace kvrun
