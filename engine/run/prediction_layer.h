// The prediction layer of a model, its own (models/prediction.h) or an EAGLE-3 layer (models/eagle.h): from hidden
// states of a token and the token behind it to a guess of the next one. Further guesses go on from the layer's own
// hidden state.
#pragma once
#include "engine/run/draft_layers.h"

namespace kvrun {

class PredictionLayer final : public DraftLayers {
 public:
	PredictionLayer(Backend&, const Gguf&, Config, const Weights& model, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates, caches apart

	void read(DraftCache& c, const DraftRows& rows, bool guesses) override { step(*c.all, rows, guesses); }
	void guess(DraftCache&, uint32_t position, uint32_t next, uint32_t most, std::vector<uint32_t>& out) override;

	// Appends n rows to the sequence. If `guess`, the layer's hidden state of the last row and the most likely token
	// after it are read.
	void step(KvSequence&, const DraftRows&, bool guess);
	uint32_t guess() const { return guess_; }
	std::span<const float> state() const { return state_; } // (dim)

 private:
	void lay(Arena&) override;
	void fill() override;
	void join(const LayerRows&, const DraftRows&);
	void fuse(const LayerRows&, const DraftRows&);
	View side_by_side(const View& a, const View& a_norm, const View& b, const View& b_norm);

	View pairs_, joined_, order_; // (2 rows, dim), (2 rows, dim) f32; (2 rows) u32
	View fused_;                  // (rows, state_width()) f32, of an EAGLE-3 layer
	std::vector<float> state_;
	uint32_t guess_ = 0;
};

} // namespace kvrun
