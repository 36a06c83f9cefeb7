// Hyper-parameters of a GGUF file; the names of their keys begin with the family's.
#pragma once
#include "models/gguf.h"
#include <string>

namespace kvrun {

struct ConfigKeys {
	const Gguf& g;
	std::string arch;
	std::string key(const char* k) const { return fmt::format("{}.{}", arch, k); }
	bool has(const char* k) const { return g.find(key(k)) != nullptr; }
	uint32_t u32(const char* k) const { return g.u32(key(k)); }
	uint32_t u32(const char* k, uint32_t fallback) const { return g.u32(key(k), fallback); }
	uint32_t u32_same(const char* k) const { return g.u32_same(key(k)); }
	float f32(const char* k, float fallback) const { return g.f32(key(k), fallback); }
	bool flag(const char* k, bool fallback) const { return g.flag(key(k), fallback); }

	// A factor: finite and more than 0.
	float positive(const char* k, float fallback) const {
		const float v = f32(k, fallback);
		if (v <= 0)
			fail(Code::Format, "{}: key {} is {}, expected more than 0; the file is damaged", g.name(), key(k), v);
		return v;
	}
};

} // namespace kvrun
