// Keys of encoders' files that have limits.
#pragma once
#include "models/gguf.h"

namespace kvrun {

constexpr uint32_t kMostEncoderDim = 1 << 16, kMostEncoderLayers = 256, kMostEncoderHeads = 1024,
                   kMostEncoderHeadDim = 512;

// A size in 1 .. most. Throws Error{Format}.
inline uint32_t sized(const Gguf& g, const char* key, uint32_t value, uint32_t most) {
	if (value == 0 || value > most)
		fail(Code::Format, "{}: key {} is {}, expected 1 to {}; the file is damaged", g.name(), key, value, most);
	return value;
}
inline uint32_t sized(const Gguf& g, const char* key, uint32_t most) { return sized(g, key, g.u32(key), most); }

// An epsilon of norms. Throws Error{Format}.
inline float norm_epsilon(const Gguf& g, const char* key) {
	const float eps = g.f32(key);
	if (eps < 0 || eps > 1)
		fail(Code::Format, "{}: key {} is {}, expected 0 to 1; the file is damaged", g.name(), key, eps);
	return eps;
}

} // namespace kvrun
