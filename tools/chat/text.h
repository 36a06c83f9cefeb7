// Errors of kvrun chat, and text from outside made fit for a terminal and for a template.
#pragma once
#include "engine/kvrun.h"
#include <fmt/format.h>
#include <memory>
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
int exit_code_of(kvrun_status); // of the program

// The text with U+FFFD for every byte that is not UTF-8.
std::string well_formed(std::string_view text);
// The text for a terminal: control characters, which could move the cursor or answer for the user, become \xNN. Tabs
// stay, and line ends where `lines`.
std::string visible(std::string_view text, bool lines = false);
// "# TEXT" on stderr: everything that is not the text of an answer.
void say(std::string_view text);
void say_error(std::string_view text);

// Handles of the library that free themselves.
template <auto free> struct HandleFree {
	template <class T> void operator()(T* handle) const { free(handle); }
};
using EngineHandle = std::unique_ptr<kvrun_engine, HandleFree<kvrun_engine_free>>;
using SessionHandle = std::unique_ptr<kvrun_session, HandleFree<kvrun_session_free>>;
using ReplyHandle = std::unique_ptr<kvrun_reply, HandleFree<kvrun_reply_free>>;
using CancellerHandle = std::unique_ptr<kvrun_canceller, HandleFree<kvrun_canceller_free>>;

} // namespace kvrun
