// Reads a text from its beginning.
#include "models/grammar/text_reader.h"
#include "engine/core/utf8.h"
#include <algorithm>

namespace kvrun::grammar {

std::optional<uint32_t> TextReader::read_character() {
	const size_t n = utf8_char(text_, at_);
	if (n == 0) return std::nullopt;
	uint32_t c = uint8_t(text_[at_]);
	if (n > 1) c &= 0x3fu >> (n - 1);
	for (size_t i = 1; i < n; ++i) c = c << 6 | (uint8_t(text_[at_ + i]) & 0x3f);
	at_ += n;
	return c;
}

std::optional<uint32_t> TextReader::read_hex(int digits) {
	uint32_t value = 0;
	for (int i = 0; i < digits; ++i, ++at_) {
		const char c = peek();
		const int d = c >= '0' && c <= '9'   ? c - '0'
		              : c >= 'a' && c <= 'f' ? c - 'a' + 10
		              : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                     : -1;
		if (d < 0) return std::nullopt;
		value = value * 16 + uint32_t(d);
	}
	return value;
}

std::optional<uint32_t> TextReader::read_number() {
	uint64_t n = 0;
	const size_t from = at_;
	for (; peek() >= '0' && peek() <= '9'; ++at_)
		n = std::min<uint64_t>(n * 10 + uint64_t(peek() - '0'), UINT32_MAX - 1);
	return at_ == from ? std::nullopt : std::optional(uint32_t(n));
}

} // namespace kvrun::grammar
