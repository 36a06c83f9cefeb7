// Helpers for programs that use the C API: exit codes, errors, owning handles, growing buffers.
#pragma once
#include "engine/kvrun.h"
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvrun {

int exit_code_of(kvrun_status); // exit code of the program, as listed by kvrun --help

template <auto free> struct HandleFree {
	template <class T> void operator()(T* handle) const { free(handle); }
};
using EngineHandle = std::unique_ptr<kvrun_engine, HandleFree<kvrun_engine_free>>;
using SessionHandle = std::unique_ptr<kvrun_session, HandleFree<kvrun_session_free>>;
using BatchHandle = std::unique_ptr<kvrun_batch, HandleFree<kvrun_batch_free>>;
using ReplyHandle = std::unique_ptr<kvrun_reply, HandleFree<kvrun_reply_free>>;
using GrammarHandle = std::unique_ptr<kvrun_grammar, HandleFree<kvrun_grammar_free>>;
using CancellerHandle = std::unique_ptr<kvrun_canceller, HandleFree<kvrun_canceller_free>>;

// An error of the library, or one that a program reports in the same way.
struct StatusError : std::runtime_error {
	kvrun_status status;
	StatusError(kvrun_status s, const std::string& what) : std::runtime_error(what), status(s) {}
};
// Throws StatusError with kvrun_last_error() if the call failed.
inline void check_call(kvrun_status s) {
	if (s != KVRUN_OK) throw StatusError(s, kvrun_last_error());
}

// Creates an object of the C API, or leaves `out` null: create(session, kvrun_session_open, engine, &options).
template <class Handle, class F, class... A> kvrun_status create(Handle& out, F call, A... arguments) {
	typename Handle::pointer made = nullptr;
	const kvrun_status s = call(&made, arguments...);
	out.reset(made);
	return s;
}
// The same; throws StatusError.
template <class Handle, class F, class... A> Handle created(F call, A... arguments) {
	Handle out;
	check_call(create(out, call, arguments...));
	return out;
}

// `call` fills a buffer like functions of the C API: (T* to, size_t room, size_t* n). It is called again with the size
// it needs if `guess` elements are too few.
template <class Buffer, class F> kvrun_status fill(Buffer& out, size_t guess, F&& call) {
	out.resize(guess);
	size_t n = 0;
	kvrun_status s = call(out.data(), out.size(), &n);
	if (s == KVRUN_EBUFFER) {
		out.resize(n + 1); // room for the terminating zero of a text
		s = call(out.data(), out.size(), &n);
	}
	out.resize(s == KVRUN_OK ? n : 0);
	return s;
}
// The same; throws StatusError.
template <class Buffer, class F> Buffer filled(size_t guess, F&& call) {
	Buffer out;
	check_call(fill(out, guess, call));
	return out;
}

// What the C API takes for an optional text.
inline const char* or_null(const std::string& s) { return s.empty() ? nullptr : s.c_str(); }

// Policy and sizes of a session; all zeros if it is null.
inline kvrun_session_info session_info(kvrun_session* s) {
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	(void)kvrun_session_get_info(s, &i);
	return i;
}
inline kvrun_engine_info engine_info(kvrun_engine* e) {
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	check_call(kvrun_engine_get_info(e, &i));
	return i;
}
// All zeros if the session fetches nothing or is null.
inline kvrun_fetch_info fetch_info(kvrun_session* s) {
	kvrun_fetch_info i = KVRUN_FETCH_INFO_INIT;
	(void)kvrun_session_get_fetch_info(s, &i);
	return i;
}

} // namespace kvrun
