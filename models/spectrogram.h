// Spectrograms of sounds, as audio encoders read them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

struct Spectrogram {
	uint32_t frames = 0, bins = 0;
	std::vector<float> values = {}; // (frames, bins)
};

enum class Features : uint8_t {
	// Frame f has so many samples as there are bins, from f * bins on.
	Samples,
	// Whisper's (arXiv:2212.04356): frame f is 400 samples around sample 160 f; in front of the sound it is mirrored,
	// behind it is silence. log10 of the power in bands of Slaney's mel scale with equal area, not less than 8 below
	// the
	// largest; (x + 4) / 4.
	Log10Mel,
	// Gemma's: frame f is 320 samples around sample 160 f, with silence in front; no frame reaches behind the sound.
	// log of 0.001 + the magnitude in bands of HTK's mel scale, each with the peak 1.
	LogMel,
	// Granite's: as Log10Mel, but in bands of HTK's mel scale, each with the peak 1; behind the sound it is mirrored,
	// too,
	// and two frames lie side by side as one. What is left over is dropped.
	Log10MelPairs,
};

constexpr uint32_t kSampleRate = 16000; // Hz, of all encoders
constexpr uint32_t kFrameStep = 160;    // samples from a frame to the next, but for Features::Samples

// Frames that hold a sound of so many samples.
uint32_t frames_of(Features, uint64_t samples, uint32_t bins);
// The first `frames` frames, which may reach behind the sound, but not of Log10MelPairs. mirrored_end: of Log10Mel,
// behind it is its mirror image.
Spectrogram spectrogram(Features, std::span<const float> samples, uint32_t bins, uint32_t frames,
                        bool mirrored_end = false);

} // namespace kvrun
