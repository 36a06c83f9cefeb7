// Runs a sound through the layers of Gemma's audio encoder (Conformer, arXiv:2303.01037).
#pragma once
#include "engine/run/audio_encoder.h"

namespace kvrun {

class ConformerRun : public EncoderRun {
 public:
	ConformerRun(AudioEncoder&, const AudioPiece&);
	bool done() const override { return layer_ == encoder_.config().transformer.n_layers; }
	void step() override;
	TileRows finish() override;

 private:
	void multiply(const View& out, const View& w, const View& x);
	void add_half_mlp(const ConformerMlp&);
	void add_attention(const ConformerWeights&);
	void add_convolution(const ConformerWeights&);

	AudioEncoder& encoder_;
	Backend& be_;
	const Config& config_;
	uint32_t n_;
	Buffer memory_;
	View x_, y_, within_, a_, b_, c_; // (n, dim), but a_ (n, hidden_dim) and within_ (n, the larger) f32
	uint32_t layer_ = 0;              // the next
};

} // namespace kvrun
