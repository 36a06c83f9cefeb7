// The cache side of one decode step: one new token for each of some sequences, whatever their policies.
#pragma once
#include "engine/cache/move_plan.h"
#include "engine/cache/read_plan.h"
#include "engine/cache/scratch.h"

namespace kvrun {

struct RowError : Error { // why one row of a step cannot go on
	size_t row;
	RowError(size_t r, const Error& e) : Error(e), row(r) {}
};

class KvStep {
 public:
	// Places the new tokens. Where that fails - no page: RowError; no memory - every sequence is as it was before.
	// Flushes that are judged by score read their sums first: one submission and wait more, once per flush. Sequences
	// are of one pool.
	KvStep(Backend&, KvScratch&, KvPool&, std::span<KvSequence* const>, uint32_t n_heads);
	// A step that did not end(): sequences are as they were before. Once work has been enqueued, those whose window
	// flushed or whose row feeds a score are empty instead.
	~KvStep();
	KvStep(const KvStep&) = delete;

	void before_layer(uint32_t l); // flushes that were due
	// Where rows first .. first + n - 1 store K and V; sets n to how many rows one op can store.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	void stored(uint32_t l); // after all rows have been stored
	// out, q (rows, n_heads, head_dim): attention of every row over its own sequence; scores where a policy asks.
	void attend(uint32_t l, const View& out, const View& q);
	void end(); // the step's work is done: the tokens are cached

 private:
	struct Layer {
		MovePlan moves;
		ReadPlan read;
		ScorePlan score;
		size_t dst_at = 0; // words in the table: (rows, n_kv_heads, 2), KvDst::at
		// Of each row: the chunk its new K and V go to, and tokens per page there; kNone: heads go to different chunks,
		// by way of `single`.
		std::vector<std::pair<uint32_t, uint32_t>> where;
		std::vector<ChunkRows> scatter; // `single` -> slots
	};
	void begin_tokens();
	void plan_layer(uint32_t l);
	void cancel() noexcept;

	Backend& be_;
	KvScratch& scratch_;
	KvPool& pool_;
	std::vector<KvSequence*> seqs_;
	KvShape shape_;
	uint32_t n_heads_;
	StepTable table_;
	std::vector<Layer> layers_;
	std::vector<uint32_t> scoring_;   // rows that feed their sequence's score
	std::vector<KvSequence*> judged_; // their sums start again with this step
	size_t scoring_at_ = 0;           // word of the list in the table
	View parts_, lse_;
	bool running_ = false, done_ = false; // work has been enqueued; end() was called
};

} // namespace kvrun
