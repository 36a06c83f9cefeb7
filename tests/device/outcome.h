// What an attempt came to while calls fail: an answer, or one Error with its code and line.
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

// What a user is told where memory is missing: how much, and the two options that need less.
inline void check_out_of_memory(const Outcome& o) {
	CHECK(o.threw);
	CHECK(o.code == Code::OutOfMemory);
	for (const char* part : {"MiB", "-c", "--kv"}) CHECK_MESSAGE(has(o.what, part), o.what);
}

} // namespace kvrun
