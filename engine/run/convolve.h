// Convolutions of an audio encoder.
#pragma once
#include "models/audio_weights.h"

namespace kvrun {

struct Plane { // (frames, bins, channels)
	uint32_t frames = 0, bins = 0, channels = 0;
	std::vector<float> values = {};
};
// With zeros around the values. Waits for the device.
Plane convolve(Backend&, const ConvolutionWeights&, const Plane&, float norm_eps);

} // namespace kvrun
