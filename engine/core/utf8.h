// Checks of UTF-8, and text from outside (file names, keys of a file) made safe for a one-line message.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun {

// Length of a character that starts with this byte; 0: none does.
constexpr size_t utf8_lead(uint8_t c) {
	return c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

// Number of bytes from s[at] on that are the beginning of a valid character (no overlong forms, no surrogates, at most
// U+10FFFF): its length if it is complete, less if the text ends or is invalid inside it.
constexpr size_t utf8_agreeing(std::string_view s, size_t at) {
	if (at >= s.size()) return 0;
	const uint8_t c = uint8_t(s[at]);
	const size_t want = utf8_lead(c);
	if (want < 2) return want;
	size_t n = 1;
	for (; n < want && at + n < s.size(); ++n) {
		const uint8_t b = uint8_t(s[at + n]);
		const uint8_t lo = n == 1 && c == 0xe0 ? 0xa0 : n == 1 && c == 0xf0 ? 0x90 : 0x80;
		const uint8_t hi = n == 1 && c == 0xed ? 0x9f : n == 1 && c == 0xf4 ? 0x8f : 0xbf;
		if (b < lo || b > hi) break;
	}
	return n;
}

// Length of the well-formed UTF-8 character at s[at]; 0 if there is none.
constexpr size_t utf8_char(std::string_view s, size_t at) {
	const size_t n = utf8_agreeing(s, at);
	return n > 0 && n == utf8_lead(uint8_t(s[at])) ? n : 0;
}

// Number of bytes at the end of `s` that more bytes may complete to a character: 0..3.
constexpr size_t utf8_unfinished(std::string_view s) {
	for (size_t n = 1; n <= 3 && n <= s.size(); ++n) {
		const size_t at = s.size() - n;
		if (utf8_lead(uint8_t(s[at])) > n && utf8_agreeing(s, at) == n) return n;
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
		const bool c1 = n == 2 && c == 0xc2 && uint8_t(s[at + 1]) < 0xa0; // U+0080..U+009F also control terminals
		if (n == 0 || c < 0x20 || c == 0x7f || c1) {
			for (size_t i = 0; i < (n ? n : 1); ++i) {
				const uint8_t b = uint8_t(s[at + i]);
				if (b == '\n')
					out += "\\n";
				else if (b == '\t')
					out += "\\t";
				else
					(out += "\\x") += {hex[b >> 4], hex[b & 15]};
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
