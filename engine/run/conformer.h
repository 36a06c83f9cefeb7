// Runs a sound through the layers of a Conformer (arXiv:2005.08100), of Gemma's or of Granite's kind.
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
	void multiply(const View& out, const Projection&, const View& x);
	void norm(const View& out, const View& x, const NormWeights&);
	template <class F> void each_part(F);
	View write_rows(const std::vector<float>& all, uint32_t first, uint32_t n);
	std::vector<float> attended(const ConformerWeights&, std::vector<float> q, std::vector<float> k,
	                            const std::vector<float>& v) const;
	void add_half_mlp(const ConformerMlp&);
	void add_attention(const ConformerWeights&);
	void add_convolution(const ConformerWeights&);
	void add_characters();

	AudioEncoder& encoder_;
	Backend& be_;
	const Config& config_;
	uint32_t n_;
	Buffer memory_;
	View x_;                      // (n, dim) f32
	View y_, c_, b_, a_, within_; // (some rows, dim), but b_ (.., dim or more), a_ and within_ (.., the most); f32
	uint32_t layer_ = 0;          // the next
};

} // namespace kvrun
