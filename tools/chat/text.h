// Errors of kvrun chat; sanitizes external text for a terminal and for a template.
#pragma once
#include "tools/api_call.h"
#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvrun {

struct ChatError : std::runtime_error {
	kvrun_status status;
	ChatError(kvrun_status s, const std::string& what) : std::runtime_error(what), status(s) {}
};
template <class... A> [[noreturn]] void fail_chat(kvrun_status s, fmt::format_string<A...> f, A&&... a) {
	throw ChatError(s, fmt::format(f, std::forward<A>(a)...));
}
// Throws ChatError with kvrun_last_error() if the call failed.
inline void check_call(kvrun_status s) {
	if (s != KVRUN_OK) throw ChatError(s, kvrun_last_error());
}

// The text with every byte that is not valid UTF-8 replaced by U+FFFD.
std::string well_formed(std::string_view text);
// Prints "# TEXT" to stderr; used for all output that is not an answer.
void say(std::string_view text);
void say_error(std::string_view text);

} // namespace kvrun
