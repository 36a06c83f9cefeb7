// Files of encoders (mmproj): one of images, one of sounds, or both.
#pragma once
#include "models/audio.h"
#include "models/vision.h"
#include <optional>

namespace kvrun {

struct EncoderConfigs { // at least one
	std::optional<VisionConfig> vision = {};
	std::optional<AudioConfig> audio = {};
};
// Throws as read_vision() and read_audio().
inline EncoderConfigs read_encoders(const Gguf& g, const Config& model, const ImageRows& rows = {}) {
	EncoderConfigs out;
	if (has_audio(g)) out.audio = read_audio(g, model);
	if (!out.audio || has_vision(g)) out.vision = read_vision(g, model, rows);
	return out;
}

} // namespace kvrun
