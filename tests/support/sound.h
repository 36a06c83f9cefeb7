// A sound for tests: the same as in tools/dev/make_audio_models.py.
#pragma once
#include <cstdint>
#include <vector>

namespace kvrun {

inline std::vector<float> test_sound(uint32_t samples) {
	std::vector<float> out(samples);
	for (uint64_t i = 0; i < samples; ++i) {
		const int64_t wave = int64_t((i * i / 911 * 7 + i * 13) % 2001) - 1000, loud = int64_t(i / 4000 % 5) + 1;
		out[i] = float(double(wave * loud) / 10240);
	}
	return out;
}

} // namespace kvrun
