// Reads a text from its beginning: common base of the parsers of grammars and patterns.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvrun::grammar {

class TextReader {
 protected:
	explicit TextReader(std::string_view text) : text_(text) {}

	bool end() const { return at_ >= text_.size(); }
	char peek() const { return end() ? '\0' : text_[at_]; }
	bool take(std::string_view s) {
		if (!text_.substr(at_).starts_with(s)) return false;
		at_ += s.size();
		return true;
	}
	// Whether "-" and the last character of a range follow.
	bool range_follows() const { return peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']'; }

	// nullopt: the text here is something else, and at_ is the position of the error.
	std::optional<uint32_t> read_character(); // UTF-8
	std::optional<uint32_t> read_hex(int digits);
	std::optional<uint32_t> read_number(); // decimal; at most UINT32_MAX - 1

	const std::string_view text_;
	size_t at_ = 0;
};

} // namespace kvrun::grammar
