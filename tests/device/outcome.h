// The outcome of an attempt while calls fail: an answer, or one Error with its code and line.
#pragma once
#include "engine/core/error.h"
#include <doctest/doctest.h>
#include <string>

namespace kvrun {

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

struct Outcome {
	bool threw = false;
	Code code{};
	std::string what;
};

template <class F> Outcome outcome_of(F&& f) {
	try {
		f();
		return {};
	} catch (const Error& e) {
		CHECK(!has(e.what(), "\n"));
		return {true, e.code, e.what()};
	}
}

// The message of an out-of-memory error: how much is missing, and the two options that need less.
inline void check_out_of_memory(const Outcome& o) {
	CHECK(o.threw);
	CHECK(o.code == Code::OutOfMemory);
	for (const char* part : {"MiB", "-c", "--kv"}) CHECK_MESSAGE(has(o.what, part), o.what);
}

} // namespace kvrun
