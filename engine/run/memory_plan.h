// Device memory of a model before it is loaded: how each byte would be used, and how many tokens of a cache fit.
#pragma once
#include "engine/kv_host/plan.h"
#include "engine/run/cache_layers.h"
#include "models/config.h"
#include "models/weight_plan.h"

namespace kvrun {

struct ModelMemory {           // memory of a model besides its cache; all 0 for a shape without a model
	uint64_t weight_bytes = 0; // as in the file
	uint64_t fixed_bytes = 0;  // activations of a prompt piece and a decode step, and the ring for weights
	uint64_t window_bytes = 0; // cache of layers with a sliding window, in models that also have others
	uint64_t state_bytes = 0;  // of recurrent layers: a state, and the next one while a prompt is read
	uint64_t row_bytes = 0;    // of a prompt's scratch memory, per token
	uint64_t lora_bytes = 0;   // of adapters
	uint64_t vision_bytes = 0; // weights of the encoders of images and sounds
	uint64_t image_bytes = 0;  // that the largest tile or piece takes while it is encoded
	uint64_t draft_bytes = 0;  // weights and activations of what drafts: prediction layer or assistant
	// Layers with a cache that draft, each of which gets as much as one of the model's cached layers; 0: none.
	uint32_t draft_layers = 0, cached_layers = 0;
	uint32_t trained_tokens = 0; // context length the model was trained for; 0: unknown
	bool positions_end = false;  // a table of positions has no more

	uint64_t beside_bytes() const {
		return lora_bytes + vision_bytes + image_bytes + draft_bytes;
	} // what is placed before weights
};
// The main cache of a context of n_tokens (Session::plan()).
KvPlan plan_of_model(const CacheLayers&, const KvPolicy&, uint64_t n_tokens);
// Of models with Layer::blocks: the cache of entries of CacheLayers::blocks()[i], of which plan_of_model() is the
// first. Throws Error{Unsupported} for a policy that such a cache cannot have.
KvPlan plan_of_blocks(const CacheLayers&, uint32_t i, const KvPolicy&);
// Of it, the keys of an indexer, which no policy packs.
uint64_t index_bytes(const CacheLayers&, uint64_t n_tokens);
uint64_t activation_bytes(const Config&, uint32_t ubatch); // ModelMemory::fixed_bytes without a ring
ModelMemory model_memory(const Config&, uint64_t weight_bytes, uint32_t ubatch);
// With the weights of the plan that lie on the device, and its ring.
ModelMemory model_memory(const Config&, const WeightPlan&, uint32_t ubatch);
// The same where the model's prediction layer drafts (EngineOptions::mtp). `prediction`: read_prediction().
ModelMemory with_prediction(ModelMemory, const Gguf&, const Config& model, const Config& prediction);
// The same where a file drafts (EngineOptions::draft_file).
ModelMemory with_draft_file(ModelMemory, const Gguf&, const Config& model);

struct MemoryAccount { // of one context; the parts and the cache's share add up to the total
	uint64_t total = 0, weights = 0, window = 0, states = 0, activations = 0, prompt = 0, reserve = 0; // bytes
	uint64_t loras = 0, vision = 0, image = 0;
	uint64_t draft = 0;       // of prediction layer or assistant
	uint64_t draft_cache = 0; // of layers that draft, f16
	uint64_t cache = 0;       // left for the cache of layers that attend to all tokens
	bool exceeded = false;    // the parts are larger than the total: nothing fits, not even a cache of no bytes
};
// total_bytes: free device memory. Assumes a prompt as long as the context. If the parts exceed the total, cache is 0.
MemoryAccount memory_account(const ModelMemory&, uint64_t total_bytes, uint64_t n_tokens);

struct Capacity {
	uint64_t by_memory = 0; // longest context whose cache fits, at most the trained one
	uint64_t kept = 0;      // tokens of it that the cache keeps; fewer if the policy evicts
	bool evicts = false;
};
Capacity capacity(const KvPlan&, const ModelMemory&, uint64_t total_bytes);

bool evicts(const KvPlan&); // whether tokens are dropped permanently
// Tokens that the cache keeps of a prompt of n tokens.
uint64_t tokens_kept(const KvPlan&, uint64_t n);

} // namespace kvrun
