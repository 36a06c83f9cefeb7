// The certain part of a JSON text of which only the beginning is known.
#pragma once
#include "models/chat/features.h"
#include <string>
#include <string_view>

namespace kvrun {

constexpr int kMaxCallNesting = 64; // of arguments; a call with deeper nesting is treated as text

struct JsonPrefix {
	std::string text; // the certain part, as Json::dump() writes it: a prefix of the dump of the whole text, unless a
	                  // key occurs twice
	size_t end = 0;   // position in the source where the rest begins
	bool whole = false;
	bool valid = true; // false: the rest does not begin with JSON
};
// s[at] is the first character of an object or array. Strings are certain as far as their escapes and UTF-8 are
// complete, numbers and words when they have ended.
JsonPrefix json_prefix(std::string_view s, size_t at);

// Writes an unfinished JSON string, without its closing quote, to `out`. `s`: the received text after the opening
// quote. `taken`: bytes of s that were used. Returns false if it is not a JSON string.
bool open_json_text(std::string_view s, std::string& out, size_t& taken);

// The same for a text without escapes. Bytes that are not UTF-8 are replaced.
std::string open_text_json(std::string_view s);
// Bytes of `s` without an incomplete character at its end.
size_t whole_characters(std::string_view s);

} // namespace kvrun
