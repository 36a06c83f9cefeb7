// Helpers for programs that use the C API: exit codes, owning handles, growing buffers.
#pragma once
#include "engine/kvrun.h"
#include <cstddef>
#include <memory>
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

// `call` fills a buffer like functions of the C API: (T* to, size_t room, size_t* n). It is called again with the size
// it needs if `guess` elements are too few.
template <class T, class F> kvrun_status fill_vector(std::vector<T>& out, size_t guess, F&& call) {
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

// All zeros if the session fetches nothing or is null.
inline kvrun_fetch_info fetch_info(kvrun_session* s) {
	kvrun_fetch_info i = KVRUN_FETCH_INFO_INIT;
	(void)kvrun_session_get_fetch_info(s, &i);
	return i;
}

} // namespace kvrun
