// Configs of files made in memory, and the errors that refuse such files.
#pragma once
#include "engine/core/error.h"
#include "models/model.h"
#include "tests/support/gguf_builder.h"
#include <doctest/doctest.h>

namespace kvrun {

inline Config config_of(const GgufBuilder& b) {
	const auto bytes = b.bytes();
	return make_model(Gguf::parse("test.gguf", bytes)).config;
}

// The message of the error that open(), given a file named test.gguf, throws; "" if it throws none. The message is one
// line and begins with the file's name; the code is Format or Unsupported.
template <class F> std::string refusal_by(F open, Code* code = nullptr) {
	try {
		open();
		return "";
	} catch (const Error& e) {
		if (code) *code = e.code;
		const std::string what = e.what();
		CHECK(what.starts_with("test.gguf: "));
		CHECK(what.find('\n') == what.npos);
		CHECK((e.code == Code::Format || e.code == Code::Unsupported));
		return what;
	}
}

// The message of the error that refuses a model with this file; "" if none does.
inline std::string refusal(const GgufBuilder& b, Code* code = nullptr) {
	const auto bytes = b.bytes();
	return refusal_by([&] { make_model(Gguf::parse("test.gguf", bytes)); }, code);
}

inline bool has(const std::string& s, const std::string& part) {
	INFO(s);
	CHECK(s.find(part) != s.npos);
	return s.find(part) != s.npos;
}

} // namespace kvrun
