// The cache side of decode steps and of prompts.
#pragma once
#include "engine/cache/undo.h"

namespace kvrun {

// Device memory the steps of an engine share: tables of one step, partial states of attention.
struct KvScratch {
	Buffer step;     // StepTable of a decode step, or of one layer's reads of a prompt
	Buffer store;    // destinations of one layer's prompt tokens
	Buffer prompt;   // destinations in the prompt's own K and V
	Buffer parts;    // partial states of attention
	Buffer gather;   // f16 slots on their way into pages: keys, then values
	Buffer single;   // one token on its way to slots in different chunks: keys, then values
	Buffer score;    // what scores and balancers need: row normalisers, sums of a prompt's tokens, maxima of queries
	StepTable table; // what goes to `step`
	View parts_view(Backend&, uint32_t n_parts, uint32_t n_heads,
	                uint32_t head_dim); // (n_parts, n_heads, head_dim + 2)
	PromptKv gather_rows(Backend&, const KvShape&, uint32_t n_rows);
	PromptKv single_row(Backend&, const KvShape&);
	size_t bytes() const {
		return step.bytes() + store.bytes() + prompt.bytes() + parts.bytes() + gather.bytes() + single.bytes() +
		       score.bytes();
	}
};

// The cache side of one decode step: one new token for each state.
class KvStep {
 public:
	// Flushes that are judged by score read their sums first: one submission and wait more, once per flush.
	KvStep(Backend&, KvScratch&, std::span<KvState* const>, uint32_t n_heads);
	void before_layer(uint32_t l); // flushes that were due
	// Where rows first .. first + n - 1 store K and V; sets n to how many rows share the memory.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	void stored(uint32_t l, uint32_t row); // after rope_store() of that row
	// out, q (rows, n_heads, head_dim): attention of every row over its own sequence; scores where a policy asks.
	void attend(uint32_t l, const View& out, const View& q);

 private:
	struct RowStep { // one row in one layer
		MovePlan moves;
		ReadPlan read, f16;
		uint32_t chunk = 0;             // new K and V go to; kNone: heads go to different ones, by way of `single`
		std::vector<ChunkRows> scatter; // `single` -> slots
	};
	void place(uint32_t l, uint32_t row);
	const RowStep& at(uint32_t l, uint32_t row) const { return steps_[size_t(l) * states_.size() + row]; }

	Backend& be_;
	KvScratch& scratch_;
	std::vector<KvState*> states_;
	uint32_t n_heads_;
	std::vector<RowStep> steps_; // (n_layers, rows)
	std::vector<size_t> dst_at_; // (n_layers) words in the step table: (rows, n_kv_heads, 2), KvDst::at
	size_t row_zero_ = 0;        // word in the step table that is 0: the list of rows {0}
	uint32_t gather_ = 0;        // rows of the gather buffer in use
	View parts_;
};

// The cache side of one prompt block of one sequence.
class KvPrompt {
 public:
	// kv: this prompt's own keys and values of one layer, with tail_rows() rows behind its tokens. probes: prompt rows
	// (ascending) that feed the score; empty: the policy's choice.
	KvPrompt(Backend&, KvScratch&, KvState&, uint32_t n_new, const PromptKv& kv, uint32_t n_heads, uint32_t ubatch,
	         std::span<const uint32_t> probes = {});
	// Gives the block up unless end() was called: the sequence is what it was before, or empty where that is impossible
	// (the device is lost, no memory was left).
	~KvPrompt();
	KvPrompt(const KvPrompt&) = delete;
	// Rows a prompt's scratch needs behind its own tokens, for f16 slots that leave their window.
	static uint32_t tail_rows(const KvState&);
	// Whether attend() must be called for rows whose result nobody needs: their queries count for scores or balancers.
	bool wants_queries() const { return !probes_.empty() || balances_; }
	void begin_layer(uint32_t l);
	KvDst scratch(uint32_t first, uint32_t n) const; // rows of the block -> its own K and V
	// out, q (n, n_heads, head_dim): exact attention of rows first .. first + n - 1, first a multiple of ubatch, over
	// older tokens and the block's own; scores where a policy asks.
	void attend(uint32_t l, const View& out, const View& q, uint32_t first);
	// Scratch and leaving f16 slots -> pages. A policy that ranks reads its scores first: a submission and a wait.
	void end_layer(uint32_t l);
	// Attention each token of the block received in the layer that end_layer() was last called for, as
	// KvCache::prompt_moves() takes it: (n_kv_heads, n_new); empty for policies without scores.
	std::span<const float> layer_scores() const { return new_scores_; }
	std::span<const uint32_t> probes() const { return probes_; }
	void end(); // the block's tokens are cached now

 private:
	const KvRead* older(uint32_t l, uint32_t n_rows); // tokens before this block; null if there are none

	Backend& be_;
	KvScratch& scratch_;
	KvState& state_;
	PromptKv kv_;
	uint32_t n_new_, n_heads_, ubatch_;
	bool done_ = false;
	bool balances_ = false;         // this prompt makes the channel balancers
	std::vector<uint32_t> probes_;  // prompt rows that feed the score, ascending
	std::vector<float> new_scores_; // (n_kv_heads, n_new) of the latest layer
	View probe_rows_;               // (probes) u32, each relative to its chunk of ubatch rows
	View lse_, sums_, q_max_;       // (ubatch, n_heads), (n_kv_heads, n_new), (n_kv_heads, head_dim) f32
	MovePlan moves_;
	KvUndo undo_;
	ReadPlan plan_, f16_; // of the latest older()
	KvRead read_;
	uint32_t read_layer_ = kNone, read_rows_ = 0;
};

} // namespace kvrun
