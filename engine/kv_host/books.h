// Numbers as bytes, for a cache's books in a file: variable length, least significant 7 bits first. The reader accepts
// arbitrary bytes and reports what is invalid.
#pragma once
#include "engine/core/error.h"
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

namespace kvrun {

class BookWriter {
 public:
	void number(uint64_t x) {
		for (; x >= 0x80; x >>= 7) bytes_.push_back(std::byte(x | 0x80));
		bytes_.push_back(std::byte(x));
	}
	void difference(uint64_t now, uint64_t before) { // signed; takes few bytes if they are close
		const int64_t d = int64_t(now - before);
		number(uint64_t(d) << 1 ^ uint64_t(d >> 63));
	}
	void real(double x) {
		const auto raw = std::bit_cast<std::array<std::byte, 8>>(x);
		bytes_.insert(bytes_.end(), raw.begin(), raw.end());
	}
	std::vector<std::byte> take() { return std::move(bytes_); }

 private:
	std::vector<std::byte> bytes_;
};

class BookReader {
 public:
	explicit BookReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

	// Throws Error{Format} if the bytes end, or the number is larger than `most`; `what` names the number.
	uint64_t number(const char* what, uint64_t most) {
		uint64_t x = 0;
		for (int shift = 0;; shift += 7) {
			if (bytes_.empty()) fail(Code::Format, "{} is missing", what);
			const uint64_t b = uint64_t(bytes_.front());
			bytes_ = bytes_.subspan(1);
			if (shift == 63 && b > 1) fail(Code::Format, "{} is no number", what);
			x |= (b & 0x7f) << shift;
			if (b < 0x80) break;
		}
		if (x > most) fail(Code::Format, "{} is {}, at most {} is possible", what, x, most);
		return x;
	}
	uint32_t count(const char* what, uint32_t most) { return uint32_t(number(what, most)); }
	uint64_t difference(uint64_t before, const char* what, uint64_t most) {
		const uint64_t z = number(what, UINT64_MAX), x = before + (z >> 1 ^ (0 - (z & 1)));
		if (x > most) fail(Code::Format, "{} is {}, at most {} is possible", what, x, most);
		return x;
	}
	double real(const char* what) {
		if (bytes_.size() < 8) fail(Code::Format, "{} is missing", what);
		double x = 0;
		std::memcpy(&x, bytes_.data(), 8);
		bytes_ = bytes_.subspan(8);
		return x;
	}
	size_t left() const { return bytes_.size(); }

 private:
	std::span<const std::byte> bytes_;
};

} // namespace kvrun
