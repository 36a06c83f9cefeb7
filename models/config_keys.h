// Hyper-parameters of a GGUF file; their keys begin with the name of the family.
#pragma once
#include "models/gguf.h"
#include <string>
#include <vector>

namespace kvrun {

struct ConfigKeys {
	const Gguf& g;
	std::string arch;
	std::string key(const char* k) const { return fmt::format("{}.{}", arch, k); }
	bool has(const char* k) const { return g.find(key(k)) != nullptr; }
	uint32_t u32(const char* k) const { return g.u32(key(k)); }
	uint32_t u32(const char* k, uint32_t fallback) const { return g.u32(key(k), fallback); }
	uint32_t u32_same(const char* k) const { return g.u32_same(key(k)); }
	// A number per layer, or one for all layers. A list may be longer: its rest is for layers that are ignored.
	std::vector<uint32_t> u32_each(const char* k, uint32_t n_layers, uint32_t most) const {
		const GgufEntry* e = g.find(key(k));
		if (!e || e->type != GgufType::Array) return std::vector<uint32_t>(n_layers, u32(k));
		const std::vector<int64_t> v = g.ints(key(k));
		if (v.size() != n_layers && v.size() != most)
			fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", g.name(),
			     key(k), v.size(), n_layers);
		for (const int64_t x : v)
			if (x < 0 || x > UINT32_MAX)
				fail(Code::Format, "{}: key {} is {} for a layer; the file is damaged", g.name(), key(k), x);
		return {v.begin(), v.begin() + n_layers};
	}
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
