// An assistant on a device: guesses tokens from the cache of the model it drafts for (models/assistant.h).
#pragma once
#include "engine/kv_device/look.h"
#include "engine/run/layer_runner.h"
#include "engine/run/logit_blocks.h"
#include "engine/run/rope_table.h"
#include "engine/run/session.h"
#include "models/assistant.h"

namespace kvrun {

class Assistant {
 public:
	// Uploads the weights. c: read_assistant().
	Assistant(Backend&, const Gguf&, Config c, const LoadProgress& = {});
	static uint64_t weight_bytes(const Gguf&, const Config&); // as in the file
	static uint64_t activation_bytes(const Config&);          // what prepare() allocates
	// Call once, when the model is on the device: makes room for activations.
	void prepare(Engine& model);

	// Begins to guess what follows the session's tokens and one more token, which the model has not read yet. state
	// (dim of the model): its residual stream after the last layer, of the session's last token. The session stays as
	// it is while guesses are made, and holds at least one token. Throws Error{OutOfMemory}.
	void begin(Session&, std::span<const float> state);
	// The most likely token behind `token`: the one that the session's text goes on with, then the guess before.
	uint32_t guess(uint32_t token);
	std::span<const float> logits(); // (vocab) of the latest guess
	const Config& config() const { return cfg_; }
	size_t bytes() const { return w_.bytes + memory_.bytes() + (runner_ ? runner_->bytes() : 0); } // device memory

 private:
	Backend& be_;
	Config cfg_;
	Weights w_;
	RopeTables rope_;
	Engine* model_ = nullptr;
	std::vector<CacheLayers::Place> places_; // by layer: the model's keys and values that it attends to
	std::unique_ptr<LayerRunner> runner_;
	std::optional<KvLook> looks_[2]; // into the main cache, and that of layers with a window
	Buffer memory_;
	View x_, both_;    // (1, dim), (2, target_dim) f32: embedding and hidden state
	TokenViews token_; // of one row
	RopeViews position_;
	bool lists_; // the device finds the largest logits
	CandidateLists list_;
	LogitBlocks blocks_;
	std::vector<float> logits_;
};

} // namespace kvrun
