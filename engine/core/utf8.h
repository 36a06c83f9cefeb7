// UTF-8 as it must be, and text from outside (file names, keys of a file) made safe for a one-line message.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

// Length of the well-formed UTF-8 character at s[at] (no overlong forms, no surrogates, at most U+10FFFF); 0 if there
// is none.
constexpr size_t utf8_char(std::string_view s, size_t at) {
	auto byte = [&](size_t i) { return at + i < s.size() ? uint32_t(uint8_t(s[at + i])) : 0u; };
	auto tail = [&](size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
	const uint32_t a = byte(0), b = byte(1);
	if (at >= s.size()) return 0;
	if (a < 0x80) return 1;
	if (a >= 0xc2 && a < 0xe0) return tail(1) ? 2 : 0;
	if (a >= 0xe0 && a < 0xf0) {
		if ((a == 0xe0 && b < 0xa0) || (a == 0xed && b >= 0xa0)) return 0;
		return tail(1) && tail(2) ? 3 : 0;
	}
	if (a >= 0xf0 && a < 0xf5) {
		if ((a == 0xf0 && b < 0x90) || (a == 0xf4 && b >= 0x90)) return 0;
		return tail(1) && tail(2) && tail(3) ? 4 : 0;
	}
	return 0;
}

// The text on one line: control characters and bytes that are not UTF-8 become \n, \t or \xNN; cut after max_bytes.
inline std::string one_line(std::string_view s, size_t max_bytes = 200) {
	constexpr char hex[] = "0123456789abcdef";
	std::string out;
	for (size_t at = 0; at < s.size();) {
		if (out.size() >= max_bytes) return out + "...";
		const size_t n = utf8_char(s, at);
		const uint8_t c = uint8_t(s[at]);
		const bool c1 = n == 2 && c == 0xc2 && uint8_t(s[at + 1]) < 0xa0; // U+0080..U+009F steer terminals too
		if (n == 0 || c < 0x20 || c == 0x7f || c1) {
			for (size_t i = 0; i < (n ? n : 1); ++i) {
				const uint8_t b = uint8_t(s[at + i]);
				if (b == '\n') out += "\\n";
				else if (b == '\t') out += "\\t";
				else (out += "\\x") += {hex[b >> 4], hex[b & 15]};
			}
			at += n ? n : 1;
		} else {
			out.append(s, at, n);
			at += n;
		}
	}
	return out;
}

} // namespace kvrun
