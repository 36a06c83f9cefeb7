// The model graph, once, for all backends: prompt rows layer by layer, decode rows one token each.
#pragma once
#include "backends/backend.h"
#include "engine/cache/step.h"
#include "models/config.h"
#include "models/weights.h"
#include <functional>
#include <span>
#include <vector>

namespace kvrun {

struct Row { // one decode row: the next token of one sequence
	KvState* kv;
	uint32_t token;
};

struct ForwardOptions {
	uint32_t ubatch = 512;      // rows of a prompt that go through a layer together
	uint32_t prefill_block = 0; // longest prompt taken layer by layer in one piece; 0: what memory and limits allow
	uint32_t max_rows = 8;      // decode rows in one step
};

struct PrefillHooks {
	// Called after each layer with done of total layers; false cancels the prompt (blocks done so far stay cached).
	std::function<bool(uint32_t done, uint32_t total)> progress;
	// If set: logits of every row, in order, in pieces: rows [first, first + n), values (n, vocab).
	std::function<void(uint32_t first, uint32_t n, std::span<const float> logits)> all_logits;
};

class Forward {
 public:
	Forward(Backend&, const Config&, const Weights&, uint32_t max_tokens, const ForwardOptions&);

	// One step: each row's token is appended to its sequence. Returns logits (rows, vocab), valid until the next call.
	std::span<const float> decode(std::span<const Row> rows);
	// Appends tokens to one sequence and returns the last token's logits (vocab); empty when a hook cancelled.
	std::span<const float> prefill(KvState& kv, std::span<const uint32_t> tokens, const PrefillHooks& = {});

	// Appends n tokens with noise for keys and values, stored as a prompt's are and taking the same memory; the model
	// does not run and nothing attends. For measuring what comes after a long prompt.
	void fill(KvState& kv, uint32_t n);

	uint32_t prefill_block() const { return opt_.prefill_block; }
	size_t activation_bytes() const;                          // device memory of everything but weights and cache
	size_t prompt_peak_bytes() const { return prompt_peak_; } // of it, the most a prompt has taken

 private:
	struct Chunk { // rows of one pass through a layer
		uint32_t n;
		View x, h;     // (n, dim) f32: residual stream, its norm
		View q, att;   // (n, n_heads, head_dim) f32
		View k, v;     // (n, n_kv_heads, head_dim) f32
		View gate, up; // (n, hidden_dim) f32
		View rope;     // (n, rotary_dim / 2, 2) f32
	};
	Chunk chunk(const View& x, const View& rope, uint32_t first, uint32_t n) const;
	static Chunk last_row(const Chunk&);
	void project_in(const LayerWeights&, const Chunk&, bool decode);  // norm, q, k, v
	void project_out(const LayerWeights&, const Chunk&, bool decode); // attention output, MLP
	void enqueue_logits(const View& x, bool decode);                  // x (n, dim) -> host_logits_ at the next wait()
	void prompt_memory(uint32_t n, uint32_t tail);
	void release_prompt_memory();
	bool block(KvState&, std::span<const uint32_t> tokens, const PrefillHooks&, uint32_t first);
	void rope_rows(uint32_t first_pos, uint32_t n, std::vector<float>& out) const; // appends (n, rotary_dim / 2, 2)

	Backend& be_;
	const Config& cfg_;
	const Weights& w_;
	ForwardOptions opt_;
	std::vector<float> inv_freq_; // (rotary_dim / 2) radians per position
	float rope_scale_ = 1;        // multiplies cos and sin

	Buffer chunk_;                         // activations of one chunk
	View h_, q_, k_, v_, att_, gate_, up_; // (max(ubatch, max_rows), ...) f32
	View logits_, final_;                  // (logit rows, vocab), (logit rows, dim) f32
	std::vector<float> host_logits_;       // (rows, vocab)
	Buffer step_;                          // decode rows: residual, tokens, rotations
	View step_x_, step_tokens_, step_rope_;
	Buffer prompt_, scratch_; // prompt blocks: the same; this layer's own keys and values
	uint32_t prompt_rows_ = 0, scratch_rows_ = 0;
	size_t prompt_peak_ = 0; // bytes
	View x_, tokens_, rope_; // (prompt_rows, ...)
	View k16_, v16_;         // (n_kv_heads, scratch_rows, head_dim) f16
	std::vector<float> host_rope_;
	KvScratch kv_; // what steps and prompts share on the cache's side
};

} // namespace kvrun
