// Configs of files that are made in memory, and what refuses them.
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

// What making a model of it says; "" when it is accepted. One line that names the file, always.
inline std::string refusal(const GgufBuilder& b, Code* code = nullptr) {
	try {
		const auto bytes = b.bytes();
		make_model(Gguf::parse("test.gguf", bytes));
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

inline bool has(const std::string& s, const std::string& part) {
	INFO(s);
	CHECK(s.find(part) != s.npos);
	return s.find(part) != s.npos;
}

} // namespace kvrun
