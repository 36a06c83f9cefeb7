// Messages of errors.
#pragma once
#include "engine/core/error.h"
#include <doctest/doctest.h>
#include <string>

namespace kvrun {

// The message of the error that f() throws; "" if it throws none.
template <class F> std::string error_of(F&& f, Code* code = nullptr) {
	try {
		f();
	} catch (const Error& e) {
		if (code) *code = e.code;
		return e.what();
	}
	return "";
}

// The message of the error that open(), given a file named test.gguf, throws; "" if it throws none. The message is one
// line and begins with the file's name; the code is Format or Unsupported.
template <class F> std::string refusal_by(F open, Code* code = nullptr) {
	Code got = Code::Format;
	const std::string what = error_of(open, &got);
	if (code) *code = got;
	if (what.empty()) return what;
	INFO(what);
	CHECK(what.starts_with("test.gguf: "));
	CHECK(what.find('\n') == what.npos);
	CHECK((got == Code::Format || got == Code::Unsupported));
	return what;
}

inline bool has(const std::string& s, const std::string& part) {
	INFO(s);
	CHECK(s.find(part) != s.npos);
	return s.find(part) != s.npos;
}

} // namespace kvrun
