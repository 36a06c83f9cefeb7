// Layers on a device that draft for a model from its hidden states: what all kinds of them have.
#pragma once
#include "engine/kv_device/step.h"
#include "engine/run/arena.h"
#include "engine/run/cache_layers.h"
#include "engine/run/layer_runner.h"
#include "engine/run/rope_table.h"
#include "engine/run/top_token.h"
#include "models/gguf.h"

namespace kvrun {

// Keys and values of a text, f16: an entry for each token that was read.
struct DraftCache {
	std::unique_ptr<KvSequence> all, window; // of layers with a window; null if all layers are of one kind
	uint32_t n_tokens() const { return all->n_tokens(); }
	void truncate(uint32_t n);
	DraftCache fork() const;
};

// What a prediction layer makes of a text's last token: the most likely token behind the next one, and its own hidden
// state (dim), from which further guesses go on. Unused by layers that guess blocks.
struct FirstGuess {
	uint32_t token = 0;
	std::vector<float> state = {};
};

struct DraftRows { // consecutive tokens of one text
	DraftCache* cache;
	uint32_t first;                   // position of the first one
	std::span<const uint32_t> tokens; // (n) of each, the token behind it
	std::span<const float> states;    // (n, state_width()) of each: the model's residual stream at state_layers()
	bool own = false;                 // the states are those of FirstGuess (n, dim)
	FirstGuess* result = nullptr;     // behind the last one; null: not wanted
};

struct DraftGuess { // of one text, whose last entry is that of the token at `position`
	DraftCache* cache;
	uint32_t position;
	uint32_t next; // token behind it
	uint32_t most; // tokens
	const FirstGuess* first;
	std::vector<uint32_t>* out; // may follow `next`; at most `most`
};

class DraftLayers {
 public:
	static constexpr uint32_t kRows = LayerRunner::kLogitRows; // most rows of a step
	static constexpr uint32_t kFusedRows = 4096;               // of a prompt

	virtual ~DraftLayers() = default;
	// Call once: makes room for activations, and a budget in bytes for the caches of all texts.
	void prepare(size_t cache_bytes);
	DraftCache cache(); // empty
	// Appends rows to the caches of different texts, at most kRows together; each attends to the earlier ones of its
	// text. Throws Error{OutOfMemory} with nothing appended.
	virtual void read(std::span<const DraftRows>) = 0;
	// Appends guesses to `out` of different texts. May leave more entries behind in their caches.
	virtual void guess(std::span<const DraftGuess>) = 0;

	// (Config::vocab) of the i-th of the latest guesses that were made together; valid until the next call.
	std::span<const float> logits(uint32_t i = 0) { return top_->logits(i); }
	const Config& config() const { return cfg_; }
	uint32_t vocab() const { return fused() ? cfg_.fusion.vocab : cfg_.vocab; } // tokens that they read
	// The layers of the model in front of which the residual stream is read; the number of layers: behind the last one.
	const std::vector<uint32_t>& state_layers() const { return state_layers_; }
	uint32_t state_width() const { return fused() ? uint32_t(state_layers_.size()) * cfg_.target_dim : cfg_.dim; }
	// So many of a prompt's last tokens are read. States of several layers take more memory than a long prompt leaves,
	// and these layers are trained on texts of a few thousand tokens.
	uint32_t prompt_rows() const { return fused() ? kFusedRows : UINT32_MAX; }
	size_t bytes() const; // device memory: weights, activations and caches

 protected:
	// Uploads the weights. `model`: weights of the model, of which some are shared; they must outlive the layers.
	DraftLayers(Backend&, const Gguf&, Config, const Weights& model, std::vector<uint32_t> state_layers,
	            const LoadProgress&);
	static uint64_t row_bytes(const Config&); // of prepare()'s arena without lay()
	bool fused() const { return !cfg_.fusion.layers.empty(); }
	virtual void lay(Arena&) {} // memory of the kind
	virtual void fill() {}      // writes what stays as it is in it
	// Of rows from x_ on: writes tokens and position tables.
	void place(std::span<const uint32_t> positions, std::span<const uint32_t> tokens);
	LayerRows rows_of(uint32_t l, uint32_t n) const { return runner_->rows_of(l, x_, tokens_, positions_, 0, n); }
	// Layer l of a step: RoPE; keys and values are stored.
	void store(uint32_t l, const LayerRows&, KvStep&);
	uint32_t token(uint32_t row) const { // of the output
		return cfg_.fusion.tokens.empty() ? row : cfg_.fusion.tokens[row];
	}

	Backend& be_;
	Config cfg_;
	const Weights& model_;
	Weights w_;
	CacheLayers layers_;
	std::unique_ptr<KvPool> pool_;
	std::unique_ptr<LayerRunner> runner_;
	std::optional<TopToken> top_; // of prepare()
	KvScratch scratch_[2];        // of both kinds of layers
	View x_;                      // (rows, dim) f32
	TokenViews tokens_;           // of rows
	RopeViews positions_;         // of rows

 private:
	KvPlan plans_[2]; // of both kinds of layers
	RopeTables rope_;
	Buffer memory_;
	std::array<std::vector<float>, kMostRopes + 1> host_rope_;
	std::vector<uint32_t> state_layers_;
};

} // namespace kvrun
