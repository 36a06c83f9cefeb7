// A model on a device: opened once, used by any number of sessions.
#pragma once
#include "backends/registry.h"
#include "engine/run/cache_layers.h"
#include "engine/run/decode.h"
#include "engine/run/draft_states.h"
#include "engine/run/image_store.h"
#include "engine/run/prompt_memory.h"
#include "engine/run/text_encoder.h"
#include "engine/run/weight_fit.h"
#include "engine/run/weight_ring.h"
#include "models/grammar/token_trie.h"
#include "models/lora.h"
#include "models/model.h"
#include "models/ngram_table.h"
#include <memory>
#include <mutex>
#include <string>

namespace kvrun {

struct EngineOptions {
	std::string model;                 // path of a .gguf file, or of the first part of a split one
	BackendOptions backend;            // which device, and how it is used
	uint32_t ubatch = 512;             // most prompt rows that go through a layer together
	uint32_t prefill_block = 0;        // longest prompt block processed layer by layer; 0: what memory allows
	uint32_t max_rows = 8;             // most sequences in one decode step, at most LayerRunner::kLogitRows
	size_t kv_budget = 0;              // bytes of cache for all sessions together; 0: what the device has free
	size_t host_budget = 0;            // bytes of host memory for policies that fetch, for all sessions; 0: a quarter
	std::string offload_dir = {};      // folder for a file with what exceeds host_budget; empty: none
	WeightOptions weights = {};        // which weights lie in host memory
	uint32_t fit_ctx = 0;              // context in tokens for which WeightOptions::fit makes room; 0: FitGoal::ctx
	std::vector<KvPolicy> fit_kv = {}; // under these policies
	LatentForm latent_form = LatentForm::Auto; // of latent attention in prompts, for tests
	std::vector<LoraOption> loras = {};        // adapters, all of them at once
	std::string mmproj = {};                   // path of the model's vision encoder; empty: it reads no images
	ImageRows image_rows = {};                 // limits of the rows of an image
	bool mtp = false;                          // the model's own prediction layer drafts: Engine::state_drafts()
	bool encoders = false;       // also opens models that encode texts, which have no sessions; else they are refused
	std::string draft_file = {}; // path of a file that drafts for the model (models/draft_file.h); or empty
};

// Bytes that caches may take of the memory left by weights: a tenth is reserved for activations and the driver.
constexpr uint64_t cache_room(uint64_t free_bytes) { return free_bytes - free_bytes / 10; }

// Throws the error for a model that encodes texts where one is needed that generates them.
[[noreturn]] void fail_encoder(std::string_view model);

class Assistant;
class AssistantDrafts;
class Session;

// A model that encodes texts has weights and text_encoder() alone: what sessions need, pool() to decoder(), is absent.
class Engine {
 public:
	~Engine();
	// Throws Error: Io, Format, Unsupported for the model, Device, OutOfMemory for the device, Invalid for options.
	static std::unique_ptr<Engine> open(const EngineOptions&, const LoadProgress& = {});

	const Config& config() const { return model_.config; }
	const Tokenizer& tokenizer() const { return model_.tokenizer; }
	const Gguf& file() const { return model_.file; }
	// Of the model with its adapters at these scales.
	uint64_t fingerprint(std::span<const float> scales) const {
		return kvrun::fingerprint(file(), lora_files_, scales);
	}
	// Of the adapters (EngineOptions::loras), in their order. Sessions that hold tokens go on only with the scales that
	// these were read with.
	const std::vector<float>& lora_scales() const { return lora_scales_; }
	// Throws Error{Invalid} on another number of scales, or one that is not finite. After any other error all scales
	// are NaN, and nothing is computed until they are set again.
	void set_lora_scales(std::span<const float>);
	void check_scales() const;                                    // throws Error{Invalid} if they are NaN
	std::shared_ptr<const grammar::TokenTrie> token_trie() const; // created on first use; any thread may call it
	Backend& backend() { return *backend_; }
	const CacheLayers& cache_layers() const { return cache_layers_; }
	KvShape kv_shape() const { return cache_layers_.policy_shape(); } // shape that a policy applies to
	KvPool& pool() { return *pool_; }
	uint32_t max_rows() const { return decoder_ ? decoder_->most_rows() : 0; }
	uint32_t ubatch() const { return ubatch_; }
	uint32_t prefill_block() const { return prefill_block_; }
	LatentForm latent_form() const { return latent_form_; }

	size_t weight_bytes() const { return weights_.bytes; }
	size_t host_weight_bytes() const { return weights_.host_bytes; }  // of them, read over the bus
	const WeightPlan& weight_plan() const { return *weight_plan_; }   // where each weight lies
	const std::string& weights_text() const { return weights_text_; } // one line; empty if all are on one device
	// What a smaller cache keeps on the device, where `auto` was weighed against weights; else empty.
	const std::string& weights_trade() const { return weights_trade_; }
	size_t activation_bytes() const;                          // device memory of everything but weights and cache
	size_t prompt_peak_bytes() const { return prompt_peak_; } // of them, the most a prompt has taken

	// Of EngineOptions::mtp, or of a draft_file that is no assistant; else null.
	StateDrafts* state_drafts() const { return state_drafts_.get(); }
	Assistant* assistant() const { return assistant_.get(); } // of a draft_file that is an assistant; else null
	std::vector<uint32_t> state_layers() const; // where the residual stream is read for the drafter (StateHook::layers)
	// Drafts an answer of the session by what this engine has for it: assistant or prediction layer; null: neither.
	std::unique_ptr<Drafter> drafter(Session&);
	// Of a model whose tokens see each other (Config::encodes), which has no sessions; else null.
	TextEncoder* text_encoder() const { return text_encoder_.get(); }
	PooledHead pooled_head() { return {*backend_, config(), weights_}; }
	const NGramTable* ngram_table() const { return ngram_table_ ? &*ngram_table_ : nullptr; } // of Config::ngrams
	ImageStore* images() const { return images_.get(); } // null without EngineOptions::mmproj

	// ---- for sessions and prompts
	LayerRunner& runner() { return *runner_; }
	WeightRing& ring() { return *ring_; }
	Decoder& decoder() { return *decoder_; }
	KvScratch& scratch() { return scratch_; }
	IndexScratch& index_scratch() { return index_scratch_; }
	KvScratch& entry_scratch(size_t i) { return entry_scratch_[i]; } // of CacheLayers::blocks()[i]
	KvScratch& window_scratch() { return window_scratch_; }          // for steps and prompts, of layers with a window
	double& pace() { return pace_; }                                 // of prompts: Prefill::step()
	std::unique_ptr<PromptMemory> take_prompt_memory();
	void give_prompt_memory(std::unique_ptr<PromptMemory>) noexcept; // small memory is kept for the next prompt
	void note_prompt_bytes(size_t bytes) { prompt_peak_ = std::max(prompt_peak_, bytes); }

 private:
	Engine(Model m, std::unique_ptr<Backend> b);

	std::unique_ptr<Backend> backend_; // first, so destroyed last: the members below hold its memory
	Model model_;
	CacheLayers cache_layers_;
	std::optional<NGramTable> ngram_table_;
	Weights weights_;
	std::vector<LoraFile> lora_files_;
	std::vector<float> lora_scales_;
	Loras loras_;
	std::unique_ptr<StateDrafts> state_drafts_; // views into weights_
	std::unique_ptr<Assistant> assistant_;
	std::unique_ptr<AssistantDrafts> assistant_drafts_;
	std::unique_ptr<ImageStore> images_;
	std::unique_ptr<TextEncoder> text_encoder_;
	std::optional<WeightPlan> weight_plan_;
	std::string weights_text_, weights_trade_;
	std::unique_ptr<WeightRing> ring_;
	std::unique_ptr<KvPool> pool_;
	KvScratch scratch_, window_scratch_;
	std::array<KvScratch, kMostBlockSizes> entry_scratch_;
	IndexScratch index_scratch_;
	std::unique_ptr<LayerRunner> runner_;
	std::unique_ptr<Decoder> decoder_;
	std::unique_ptr<PromptMemory> spare_;
	mutable std::once_flag trie_made_;
	mutable std::shared_ptr<const grammar::TokenTrie> trie_;
	uint32_t ubatch_ = 0, prefill_block_ = 0;
	LatentForm latent_form_ = LatentForm::Auto;
	size_t prompt_peak_ = 0; // bytes
	double pace_ = 0;
};

} // namespace kvrun
