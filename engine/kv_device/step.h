// The cache side of one decode step: one or more new tokens of each of several sequences, under any policies.
#pragma once
#include "engine/kv_device/fetch.h"
#include "engine/kv_device/move_plan.h"
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/scratch.h"

namespace kvrun {

struct RowError : Error { // the error of one row of a step
	size_t row;
	RowError(size_t r, const Error& e) : Error(e), row(r) {}
};

struct StepRow { // one token of a step
	KvSequence* seq;
	// False: a speculative token, which follows the sequence's kept one if the step has one. It sees all tokens, and
	// its attention chooses what the next step fetches; it is not cached.
	bool keep = true;
	// 1, 2, .. for kept tokens after the sequence's next one (KvCache::step_tokens()): each sees those before it, and
	// truncate() can remove them. In a step such rows follow all next tokens, those of a sequence in order.
	uint32_t draft = 0;
	bool chooses = false; // attends to the tokens that choose() is given for it
	bool adds = true;     // false: a kept row that adds no token, and sees those that there are
};

class KvStep {
 public:
	// Places the new tokens. If that fails (RowError without a page; or out of memory), every sequence is unchanged.
	// Flushes that rank by score read their sums first, which costs one more submission and wait per flush. All
	// sequences must use the same pool. causal: as in RowMasks::add().
	KvStep(Backend&, KvScratch&, KvPool&, std::span<const StepRow>, uint32_t n_heads, bool causal = true);
	// Without end(), sequences are restored to their state before the step. If work has been enqueued, those whose
	// window flushed or whose row feeds a score are emptied instead.
	~KvStep();
	KvStep(const KvStep&) = delete;

	void before_layer(uint32_t l); // enqueues moves of due flushes
	// Where rows first .. first + n - 1 store K and V; sets n to how many rows one op can store.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	void stored(uint32_t l); // after all rows have been stored
	// Before attend(), if some rows choose: bits (rows * KvPlan::choices, words) of tokens by position, as
	// op::IndexPick makes them.
	void choose(uint32_t l, const View& bits);
	// out, q (rows, n_heads, head_dim): attention of every row over its own sequence; scores where a policy asks.
	// lse: for each row's normaliser, (rows, n_heads); may be empty.
	void attend(uint32_t l, const View& out, const View& q, const Softmax& = {}, const View& lse = {});
	// The same after attend(), for a model layer without keys and values of its own; its queries change no
	// scores.
	void attend_again(uint32_t l, const View& out, const View& q, const Softmax& = {});
	// Call when everything has been enqueued: begins to fetch what the next step reads, layer by layer as the device
	// computes the picks. Submits; returns before the last ops are done.
	void fetch_next();
	void end(); // call when the step's work is done: the tokens are then cached

 private:
	struct Layer {
		MovePlan moves;
		ReadPlan read, fetched_read; // fetched_read: rows that attend again, to what they have chosen
		ScorePlan score;
		WeighPlan weigh;
		size_t dst_at = 0; // words in the table: (rows, n_kv_heads, 2), KvDst::at
		// For each row: the chunk of its new K and V, and tokens per page there; kNone if its heads lie in different
		// chunks, which are written through `single`.
		std::vector<std::pair<uint32_t, uint32_t>> where;
		std::vector<ChunkRows> scatter; // `single` -> slots
		size_t choices_at = 0;          // first word in the table of the work of choose()
		uint32_t n_choices = 0;
		size_t shares_at = 0;        // first word in the table of the work of part_share()
		std::vector<uint32_t> picks; // as read back, of all choosers
		std::vector<float> shares;   // (sharers, n_heads)
		uint64_t mark = 0;
	};
	struct Chooser { // a row that chooses what to fetch
		uint32_t row;
		KvSequence* seq;
		uint32_t weights, picks; // first words of its weights and picks
	};
	void begin_tokens();
	void plan_fetch();
	void plan_layer(uint32_t l);
	void cancel() noexcept;
	bool syncs() const { return !choosers_.empty() && choosers_[0].seq->plan().policy.fetch_sync; }
	void weigh(uint32_t l, const View& q, const Softmax&);
	void take_picks(uint32_t l);
	void attend_to_fetched(uint32_t l, const View& out, const View& q, const Softmax&);

	Backend& be_;
	KvScratch& scratch_;
	KvPool& pool_;
	std::vector<StepRow> rows_;
	std::vector<KvSequence*> seqs_;  // of the kept rows that add a token and are not drafts; they come first
	std::vector<uint32_t> row_of_;   // of seqs_
	std::vector<uint32_t> n_tokens_; // of seqs_: tokens in this step
	RowMasks masks_;                 // of sequences with drafts
	RowChoices choices_;             // of rows that choose
	KvShape shape_;
	uint32_t n_heads_;
	StepTable table_;
	std::vector<Layer> layers_;
	std::vector<uint32_t> scoring_;        // rows that feed their sequence's score
	std::vector<KvSequence*> judged_;      // sequences whose sums restart with this step
	std::vector<std::vector<float>> sums_; // of attention, of each kept row's sequence, where a flush is judged by them
	size_t scoring_at_ = 0;                // word of the list in the table
	View parts_, lse_;
	bool running_ = false, done_ = false; // work has been enqueued; end() was called

	// ---- for sequences that fetch
	std::vector<KvSequence*> fetching_;
	size_t n_prepared_ = 0; // of them
	std::vector<Chooser> choosers_;
	std::vector<uint32_t> sharers_; // kept rows whose share on f16 tokens is measured
	size_t top_at_ = 0, edits_at_ = 0;
	uint32_t n_top_ = 0, n_edits_ = 0, n_picks_ = 0, picks_at_ = 0, shares_at_ = 0; // words of scratch_.fetch
	Buffer edits_;                                                                  // of masks, inside a layer
};

} // namespace kvrun
