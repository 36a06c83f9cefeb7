// Runs an audio encoder (models/audio.h) on a backend: a piece of a sound becomes rows of the model's residual stream.
#pragma once
#include "engine/run/encoder_run.h"
#include "models/audio_weights.h"
#include <memory>

namespace kvrun {

class AudioEncoder {
 public:
	// The backend must outlive it. Throws as load_audio() does.
	AudioEncoder(Backend&, const Gguf&, AudioConfig);

	const AudioConfig& config() const { return config_; }
	size_t weight_bytes() const { return weights_.bytes; }
	double work(const AudioPiece&) const; // multiplies and adds
	// The encoder must outlive it. Throws Error{OutOfMemory}.
	std::unique_ptr<EncoderRun> begin(const AudioPiece&);
	TileRows encode(const AudioPiece&); // all of it
	// Of device memory, beside the weights.
	static uint64_t bytes(const AudioConfig&);

	// ---- for the runs
	Backend& backend() { return be_; }
	const AudioWeights& weights() const { return weights_; }
	// (transformer_rows(), dim): what the layers read.
	std::vector<float> embedded(const AudioPiece&);
	// The rows that come out of the layers.
	TileRows projected(std::vector<float> rows);

 private:
	Backend& be_;
	AudioConfig config_;
	AudioWeights weights_;
};

} // namespace kvrun
