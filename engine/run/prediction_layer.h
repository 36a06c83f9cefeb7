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

	void read(std::span<const DraftRows>) override;
	void guess(std::span<const DraftGuess>) override;

 private:
	void lay(Arena&) override;
	void fill() override;
	void join(const LayerRows&, std::span<const float> states, bool own);
	void fuse(const LayerRows&, std::span<const float> states, bool own);
	View side_by_side(const View& a, const View& a_norm, const View& b, const View& b_norm);
	bool is_table() const; // rows of activations lie as those of a table of embeddings
	View gathered(const View& x, std::span<const uint32_t> wanted);

	View pairs_, joined_, order_; // (2 rows, dim), (2 rows, dim) f32; (2 rows) u32
	View last_, last_order_;      // (rows, dim) f32, (rows) u32
	View fused_;                  // (rows, state_width()) f32, of an EAGLE-3 layer
	std::vector<float> states_;   // of a step
};

} // namespace kvrun
