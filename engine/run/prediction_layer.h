// The prediction layer of a model on a device, its own (models/prediction.h) or an EAGLE-3 layer (models/eagle.h): from
// hidden states of a token and the token behind it to a guess of the next one.
#pragma once
#include "engine/kv_device/step.h"
#include "engine/run/cache_layers.h"
#include "engine/run/layer_runner.h"
#include "engine/run/rope_table.h"
#include "engine/run/top_token.h"
#include "models/gguf.h"

namespace kvrun {

struct PredictionRows {               // consecutive tokens of one sequence
	uint32_t first = 0;               // position of the first one
	std::span<const uint32_t> tokens; // (n) of each, the token behind it
	std::span<const float> states;    // (n, state_width()) of each: the model's residual stream at state_layers()
	bool own = false; // the states are this layer's (n, dim), and may be PredictionLayer::state() itself
};

class PredictionLayer {
 public:
	static constexpr uint32_t kRows = LayerRunner::kLogitRows; // most rows of a step

	static constexpr uint32_t kFusedRows = 4096; // of a prompt

	// Uploads the layer's weights. `model`: weights of the model, which it shares; they must outlive it.
	PredictionLayer(Backend&, const Gguf&, Config, const Weights& model, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates, caches apart
	// Call once: makes room for activations, and a budget in bytes for the caches of all sequences.
	void prepare(size_t cache_bytes);

	std::unique_ptr<KvSequence> sequence(); // empty
	// Appends n rows to the sequence, whose earlier ones they attend to. If `guess`, the layer's hidden state of the
	// last row and the most likely token after it are read. Throws Error{OutOfMemory} with nothing appended.
	void step(KvSequence&, const PredictionRows&, bool guess);
	uint32_t guess() const { return guess_; }
	std::span<const float> state() const { return state_; }                     // (dim)
	std::span<const float> logits() { return top_->logits(); }                  // (Config::vocab) of that row
	uint32_t vocab() const { return fused() ? cfg_.fusion.vocab : cfg_.vocab; } // tokens that it reads
	// The layers of the model in front of which the residual stream is read, ascending; the number of layers: behind
	// the last one.
	const std::vector<uint32_t>& state_layers() const { return state_layers_; }
	uint32_t state_width() const { return fused() ? uint32_t(state_layers_.size()) * cfg_.target_dim : cfg_.dim; }
	// So many of a prompt's last tokens are read. States of several layers take more memory than a long prompt leaves,
	// and EAGLE-3 layers are trained on texts of a few thousand tokens.
	uint32_t prompt_rows() const { return fused() ? kFusedRows : UINT32_MAX; }
	const Config& config() const { return cfg_; }
	size_t bytes() const; // device memory: weights, activations and caches

 private:
	bool fused() const { return !cfg_.fusion.layers.empty(); }
	void join(const LayerRows&, const PredictionRows&);
	void fuse(const LayerRows&, const PredictionRows&);
	View side_by_side(const View& a, const View& a_norm, const View& b, const View& b_norm);

	Backend& be_;
	Config cfg_;
	const Weights& model_;
	Weights w_;
	CacheLayers layers_;
	KvPlan plan_;
	RopeTables rope_;
	std::unique_ptr<KvPool> pool_;
	std::unique_ptr<LayerRunner> runner_;
	KvScratch scratch_;
	Buffer memory_;
	View x_, pairs_, joined_, order_; // (rows, dim), (2 rows, dim), (2 rows, dim) f32; (2 rows) u32
	View fused_;                      // (rows, state_width()) f32, of an EAGLE-3 layer
	TokenViews tokens_;               // of rows
	RopeViews positions_;             // of rows
	std::array<std::vector<float>, kMostRopes + 1> host_rope_;
	std::optional<TopToken> top_; // of prepare()
	std::vector<float> state_;
	std::vector<uint32_t> state_layers_, tokens_of_; // read_token_table()
	uint32_t guess_ = 0;
};

} // namespace kvrun
