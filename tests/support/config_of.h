// Configs of files made in memory, and the errors that refuse such files.
#pragma once
#include "models/model.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"

namespace kvrun {

inline Config config_of(const GgufBuilder& b) {
	const auto bytes = b.bytes();
	return make_model(Gguf::parse("test.gguf", bytes)).config;
}

// The message of the error that refuses a model with this file; "" if none does.
inline std::string refusal(const GgufBuilder& b, Code* code = nullptr) {
	const auto bytes = b.bytes();
	return refusal_by([&] { make_model(Gguf::parse("test.gguf", bytes)); }, code);
}

} // namespace kvrun
