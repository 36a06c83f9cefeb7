// How a camera was held.
#include "tools/image/orientation.h"
#include <algorithm>
#include <cstring>
#include <string_view>

namespace kvrun {
namespace {

class Bytes {
 public:
	explicit Bytes(std::span<const std::byte> b) : b_(b) {}
	size_t size() const { return b_.size(); }
	bool has(size_t at, std::string_view text) const {
		return at <= size() && text.size() <= size() - at && std::memcmp(b_.data() + at, text.data(), text.size()) == 0;
	}
	// Of n bytes; 0 outside.
	uint32_t number(size_t at, uint32_t n, bool big_endian) const {
		uint32_t v = 0;
		if (at > size() || n > size() - at) return 0;
		for (uint32_t i = 0; i < n; ++i) v |= uint32_t(b_[at + i]) << 8 * (big_endian ? n - 1 - i : i);
		return v;
	}
	Bytes part(size_t at, size_t n) const {
		at = std::min(at, size());
		return Bytes(b_.subspan(at, std::min(n, size() - at)));
	}

 private:
	std::span<const std::byte> b_;
};

// A TIFF file: a header, then at the given offset the number of entries of 12 bytes: tag, type, count, value.
uint32_t tiff_orientation(const Bytes& b) {
	constexpr uint32_t kOrientation = 0x0112, kShort = 3, kEntry = 12;
	const bool big = b.has(0, std::string_view("MM\0*", 4));
	if (!big && !b.has(0, std::string_view("II*\0", 4))) return 1;
	const size_t at = b.number(4, 4, big);
	const uint32_t n = b.number(at, 2, big);
	for (uint32_t i = 0; i < n; ++i) {
		const size_t entry = at + 2 + size_t(i) * kEntry;
		if (entry + kEntry > b.size()) return 1;
		if (b.number(entry, 2, big) != kOrientation || b.number(entry + 2, 2, big) != kShort) continue;
		const uint32_t v = b.number(entry + 8, 2, big);
		return v >= 1 && v <= 8 ? v : 1;
	}
	return 1;
}

} // namespace

uint32_t jpeg_orientation(std::span<const std::byte> file) {
	const Bytes b(file);
	// segments: 0xff, kind, length of what follows and of itself
	for (size_t at = 2; at + 4 <= b.size() && b.number(at, 1, true) == 0xff;) {
		constexpr uint32_t kApp1 = 0xe1, kScan = 0xda;
		const uint32_t kind = b.number(at + 1, 1, true), length = b.number(at + 2, 2, true);
		if (kind == kScan || length < 2) break;
		constexpr std::string_view kExif("Exif\0\0", 6);
		if (kind == kApp1 && b.has(at + 4, kExif))
			return tiff_orientation(
			    b.part(at + 4 + kExif.size(), length - 2 - std::min<size_t>(length - 2, kExif.size())));
		at += 2 + length;
	}
	return 1;
}

Pixels upright(Pixels p, uint32_t orientation) {
	if (orientation <= 1 || orientation > 8) return p;
	const bool turned = orientation >= 5; // rows become columns
	Pixels out{turned ? p.height : p.width, turned ? p.width : p.height, std::vector<uint8_t>(p.rgb.size())};
	const bool right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
	const bool bottom = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
	for (uint32_t y = 0; y < p.height; ++y)
		for (uint32_t x = 0; x < p.width; ++x) {
			const uint32_t across = turned ? y : x, down = turned ? x : y;
			const size_t column = right ? out.width - 1 - across : across, row = bottom ? out.height - 1 - down : down;
			std::memcpy(&out.rgb[(row * out.width + column) * 3], &p.rgb[(size_t(y) * p.width + x) * 3], 3);
		}
	return out;
}

} // namespace kvrun
