// Errors of kvrun chat, and text from outside made fit for a terminal and for a template.
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
// Throws what the library says of its last call, where that failed.
inline void check_call(kvrun_status s) {
	if (s != KVRUN_OK) throw ChatError(s, kvrun_last_error());
}

// The text with U+FFFD for every byte that is not UTF-8.
std::string well_formed(std::string_view text);
// "# TEXT" on stderr: everything that is not the text of an answer.
void say(std::string_view text);
void say_error(std::string_view text);

} // namespace kvrun
