// Errors of the C API: an exception becomes a status and a line of text, kept for the thread that failed.
#pragma once
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/kvrun.h"

namespace kvrun::api {

// Errors with codes that only the C API has.
struct Failure : std::runtime_error {
	kvrun_status status;
	Failure(kvrun_status s, const std::string& what) : std::runtime_error(what), status(s) {}
};
template <class... A> [[noreturn]] void refuse(kvrun_status s, fmt::format_string<A...> f, A&&... a) {
	throw Failure(s, fmt::format(f, std::forward<A>(a)...));
}

kvrun_status status_of(Code);
void set_last_error(const char*) noexcept; // truncated to the thread's buffer; never allocates
LogSink log_sink(kvrun_log_cb, void* payload);
// Call in a catch block: stores the exception's text and returns its status.
kvrun_status failed() noexcept;

// Runs the body of a function of the API.
template <class F> kvrun_status guard(F&& body) noexcept {
	try {
		body();
		set_last_error("");
		return KVRUN_OK;
	} catch (...) { return failed(); }
}

// The same for a function that returns no status; the thread's last error is unchanged.
template <class F> void quietly(F&& body) noexcept {
	try {
		body();
	} catch (...) {} // the handle is not open
}

inline void check_pointer(const void* p, const char* name) {
	if (!p) refuse(KVRUN_EINVALID, "{} is NULL", name);
}

} // namespace kvrun::api
