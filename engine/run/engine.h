// A model on a device: opened once, used by any number of sessions.
#pragma once
#include "engine/run/forward.h"
#include "models/model.h"
#include <functional>
#include <memory>
#include <string>

namespace kvrun {

struct EngineOptions {
	std::string model;          // path of a .gguf file, or of the first part of a split one
	std::string device;         // as for open_backend(); empty: best
	uint32_t ctx = 0;           // longest sequence in tokens; 0: what fits the device, at most the trained context
	uint32_t ubatch = 512;      // prompt rows that go through a layer together
	uint32_t prefill_block = 0; // longest prompt piece taken layer by layer; 0: what memory allows
	KvPolicy kv;                // how the cache is stored
	size_t kv_budget = 0;       // bytes of cache; 0: what the device has free
	uint64_t seed = 1;          // of a policy's random choices
};

struct KvStore { // one way to keep the cache: what goes where, and the memory it lies in
	KvPlan plan;
	std::unique_ptr<KvPool> pool; // looks at the plan
};

class Engine {
 public:
	// Throws Error: Io, Format, Unsupported for the model, Device, OutOfMemory for the device, Invalid for options.
	static std::unique_ptr<Engine> open(const EngineOptions&, const LoadProgress& = {});

	// Stores the cache another way from now on, within the same budget; no session may live. Throws Error{Invalid} on a
	// policy that this model's cache cannot have, with nothing changed.
	void set_kv(const KvPolicy&);
	// For going back and forth between policies with each one's memory kept: a store of its own for a policy, and the
	// engine's exchanged for another; no session may live. Every store may take the whole budget.
	std::unique_ptr<KvStore> make_kv(const KvPolicy&);
	void swap_kv(std::unique_ptr<KvStore>& other) { kv_.swap(other); }

	const Config& config() const { return model_.config; }
	const Tokenizer& tokenizer() const { return model_.tokenizer; }
	const Gguf& file() const { return model_.file; }
	const KvPlan& plan() const { return kv_->plan; }
	Backend& backend() { return *backend_; }
	KvPool& pool() { return *kv_->pool; }
	Forward& forward() { return *forward_; }
	uint32_t ctx() const { return ctx_; }                 // longest sequence in tokens
	bool ctx_by_budget() const { return ctx_by_budget_; } // ... and the cache's budget, not the model, sets it
	size_t weight_bytes() const { return weights_.bytes; }
	uint64_t seed() const { return seed_; }

 private:
	Engine(Model m, std::unique_ptr<Backend> b) : backend_(std::move(b)), model_(std::move(m)) {}

	std::unique_ptr<Backend> backend_; // first in, last out: everything below holds its memory
	Model model_;
	Weights weights_;
	std::unique_ptr<KvStore> kv_;
	std::unique_ptr<Forward> forward_;
	uint32_t ctx_ = 0;
	bool ctx_by_budget_ = false;
	uint64_t seed_ = 1;
};

class Session { // one sequence of tokens; must end before its engine
 public:
	explicit Session(Engine&);
	// Appends tokens; returns the last one's logits (vocab), empty when the hook cancelled. Throws Error{Context} when
	// they do not fit, Error{OutOfMemory} when the cache's budget is used up, with nothing appended.
	std::span<const float> prefill(std::span<const uint32_t> tokens, const PrefillHooks& = {});
	void fill(uint32_t n); // appends n tokens of noise: Forward::fill()
	// Appends one token; logits (vocab). Throws Error{Context} or, when the cache's budget is used up, OutOfMemory with
	// nothing appended; when the device fails half way, the session is empty afterwards.
	std::span<const float> decode(uint32_t token);
	uint32_t n_tokens() const { return kv_.n_tokens(); }
	uint32_t ctx() const { return engine_.ctx(); }
	KvBytes kv_bytes() const { return kv_.bytes(); }
	// Device memory allocated for the cache: the pool's chunks (all sessions'), this session's tables.
	size_t kv_device_bytes() const { return engine_.pool().allocated_bytes() + kv_.table_bytes(); }
	KvState& kv() { return kv_; }
	void reset() { kv_.reset(); }
	Engine& engine() { return engine_; }

 private:
	Engine& engine_;
	KvState kv_;
};

} // namespace kvrun
