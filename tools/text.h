// Errors and messages of programs on the C API; sanitizes external text for a terminal and for a template.
#pragma once
#include "tools/api_call.h"
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace kvrun {

template <class... A> [[noreturn]] void fail_status(kvrun_status s, fmt::format_string<A...> f, A&&... a) {
	throw StatusError(s, fmt::format(f, std::forward<A>(a)...));
}

// The text with every byte that is not valid UTF-8 replaced by U+FFFD.
std::string well_formed(std::string_view text);
// Prints "# TEXT" to stderr; used for all output that is not an answer.
void say(std::string_view text);
void say_error(std::string_view text);

} // namespace kvrun
