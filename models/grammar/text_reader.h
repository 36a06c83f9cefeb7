// A text that is read from its beginning: what the parsers of grammars and of patterns have in common.
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
	// Whether - and the end of a range of characters follow.
	bool range_follows() const { return peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']'; }

	// Read what begins here; nullopt: it does not, and at_ is where it goes wrong.
	std::optional<uint32_t> read_character(); // of UTF-8
	std::optional<uint32_t> read_hex(int digits);
	std::optional<uint32_t> read_number(); // in decimal; UINT32_MAX - 1 if it is larger

	const std::string_view text_;
	size_t at_ = 0;
};

} // namespace kvrun::grammar
