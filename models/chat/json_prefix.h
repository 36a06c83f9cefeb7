// What the beginning of a JSON text is certain to say.
#pragma once
#include "models/chat/features.h"
#include <string>
#include <string_view>

namespace kvrun {

constexpr int kMaxCallNesting = 64; // of arguments; a call that is nested deeper is text

struct JsonPrefix {
	std::string text; // what is certain, as Json::dump() writes it: a prefix of the whole text's dump, unless a key is
	                  // there twice
	size_t end = 0;   // where in the source the rest begins
	bool whole = false;
	bool valid = true; // false: the rest begins with what is no JSON
};
// s[at] is the first character of an object or array. Texts come as far as their escapes and UTF-8 are complete,
// numbers and words when they have ended.
JsonPrefix json_prefix(std::string_view s, size_t at);

// A text without its last quote, as far as it has come; `s`: what follows the first quote, without the last.
// False: it is no JSON text. `taken`: bytes of s that are in it.
bool open_json_text(std::string_view s, std::string& out, size_t& taken);

// The same of a text that has no escapes. What is not UTF-8 is replaced.
std::string open_text_json(std::string_view s);
// Bytes at the front of `s` without a character at its end that is not complete.
size_t whole_characters(std::string_view s);

} // namespace kvrun
