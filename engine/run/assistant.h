// An assistant on a device: guesses tokens from the cache of the model it drafts for (models/assistant.h).
#pragma once
#include "engine/kv_device/look.h"
#include "engine/run/rope_table.h"
#include "engine/run/session.h"
#include "engine/run/top_token.h"
#include "models/assistant.h"

namespace kvrun {

class Assistant {
 public:
	// Uploads the weights. c: read_assistant().
	Assistant(Backend&, const Gguf&, Config c, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates
	// Call once, when the model is on the device: makes room for activations.
	void prepare(Engine& model);

	// Guesses of what follows the session's tokens and one more token, which the model has not read yet. One round at a
	// time; it must end before the session changes.
	class Round {
	 public:
		// state (dim of the model): its residual stream after the last layer, of the session's last token. The session
		// holds at least one token. Throws Error{OutOfMemory}.
		Round(Assistant&, Session&, std::span<const float> state);
		// The most likely token behind `token`: the one that the session's text goes on with, then the guess before.
		uint32_t guess(uint32_t token);

	 private:
		Assistant& a_;
		std::optional<KvLook> looks_[2]; // into the main cache, and that of layers with a window
	};
	std::span<const float> logits() { return top_->logits(); } // (vocab) of the latest guess
	const Config& config() const { return cfg_; }
	size_t bytes() const { return w_.bytes + memory_.bytes() + (runner_ ? runner_->bytes() : 0); } // device memory

 private:
	uint32_t guess(std::optional<KvLook> (&looks)[2], uint32_t token);

	Backend& be_;
	Config cfg_;
	Weights w_;
	RopeTables rope_;
	Engine* model_ = nullptr;
	std::vector<CacheLayers::Place> places_; // by layer: the model's keys and values that it attends to
	std::unique_ptr<LayerRunner> runner_;
	Buffer memory_;
	View x_, both_;    // (1, dim), (2, target_dim) f32: embedding and hidden state
	TokenViews token_; // of one row
	RopeViews position_;
	std::optional<TopToken> top_; // of prepare()
};

} // namespace kvrun
