// Files of tests/golden/tiny in memory, changed in one place, and what reading them says.
#pragma once
#include "models/model.h"
#include "tests/support/errors.h"
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

namespace kvrun {

using Bytes = std::vector<std::byte>;

inline Bytes golden(const std::string& name) {
	std::ifstream in(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/" + name + ".gguf", std::ios::binary);
	const std::string s{std::istreambuf_iterator<char>(in), {}};
	REQUIRE(!s.empty());
	const auto bytes = std::as_bytes(std::span(s));
	return {bytes.begin(), bytes.end()};
}

inline size_t place_of(const Bytes& b, std::string_view text) {
	const std::string_view all(reinterpret_cast<const char*>(b.data()), b.size());
	const size_t at = all.find(text);
	REQUIRE(at != all.npos);
	return at;
}

inline Bytes with_u32(Bytes b, std::string_view key, uint32_t v) {
	std::memcpy(&b[place_of(b, key) + key.size() + 4], &v, 4); // after its type
	return b;
}

inline Bytes with_f32(Bytes b, std::string_view key, float v) {
	return with_u32(std::move(b), key, std::bit_cast<uint32_t>(v));
}

inline Bytes renamed(Bytes b, std::string_view from, std::string_view to) {
	REQUIRE(from.size() == to.size());
	std::memcpy(&b[place_of(b, from)], to.data(), to.size());
	return b;
}

inline Config config_of(const Bytes& b) { return make_model(Gguf::parse("test.gguf", b)).config; }

inline std::string refusal(const Bytes& b) {
	return refusal_by([&] { config_of(b); });
}

// The file is refused with these words.
inline void check_refused(const Bytes& b, std::string_view words) {
	const std::string text = refusal(b);
	CAPTURE(text);
	CAPTURE(words);
	CHECK(text.find(words) != text.npos);
}

// The file is refused without any of these tensors, whose names begin so.
inline void check_needed(const Bytes& b, const std::string& front, std::initializer_list<const char*> tensors) {
	for (const char* tensor : tensors) {
		const std::string name = front + tensor;
		std::string other = name;
		other.back() = 'x';
		check_refused(renamed(b, name, other), "tensor " + name + " is missing");
	}
}

} // namespace kvrun
