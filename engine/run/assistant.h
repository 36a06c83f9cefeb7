// An assistant on a device: guesses tokens from the cache of the model it drafts for (models/assistant.h).
#pragma once
#include "engine/kv_device/look.h"
#include "engine/run/rope_table.h"
#include "engine/run/session.h"
#include "engine/run/top_token.h"
#include "models/assistant.h"
#include <deque>

namespace kvrun {

class Assistant {
 public:
	static constexpr uint32_t kRows = 8; // most texts of a round

	// Uploads the weights. c: read_assistant().
	Assistant(Backend&, const Gguf&, Config c, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates
	// Call once, when the model is on the device: makes room for activations.
	void prepare(Engine& model);

	struct Text {
		Session* session; // holds at least one token
		// (dim of the model): its residual stream after the last layer, of the session's last token.
		std::span<const float> state;
	};
	// Guesses of what follows the tokens of sessions and one more token each, which the model has not read yet. One
	// round at a time; it must end before a session changes.
	class Round {
	 public:
		// At most kRows texts. Throws Error{OutOfMemory}.
		Round(Assistant&, std::span<const Text>);
		// The most likely token behind each of `tokens`: those that the texts go on with, then the guesses before.
		// Texts at the end may be left out, and stay so.
		std::vector<uint32_t> guess(std::span<const uint32_t> tokens);

	 private:
		Assistant& a_;
		struct Looks { // into the main cache, and that of layers with a window
			std::optional<KvLook> of[2];
		};
		std::deque<Looks> looks_; // by text
	};
	std::span<const float> logits(uint32_t i = 0) { return top_->logits(i); } // (vocab) of text i's latest guess
	const Config& config() const { return cfg_; }
	size_t bytes() const; // device memory

 private:
	Backend& be_;
	Config cfg_;
	Weights w_;
	RopeTables rope_;
	Engine* model_ = nullptr;
	std::vector<CacheLayers::Place> places_; // by layer: the model's keys and values that it attends to
	std::unique_ptr<LayerRunner> runner_;
	Buffer memory_;
	View x_, both_;     // (rows, dim), (2 rows, target_dim) f32: of each row embedding and hidden state
	View states_;       // (rows, target_dim) f32
	TokenViews tokens_; // of rows
	RopeViews positions_;
	KvScratch scratch_[kRows][2];
	std::optional<TopToken> top_; // of prepare()
};

} // namespace kvrun
