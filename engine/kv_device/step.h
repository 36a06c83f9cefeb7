// The cache side of one decode step: new tokens of some sequences, one each or several, whatever their policies.
#pragma once
#include "engine/kv_device/fetch.h"
#include "engine/kv_device/move_plan.h"
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/scratch.h"

namespace kvrun {

struct RowError : Error { // why one row of a step cannot go on
	size_t row;
	RowError(size_t r, const Error& e) : Error(e), row(r) {}
};

struct StepRow { // one token of a step
	KvSequence* seq;
	// False: a speculative token, which comes behind the sequence's kept one if the step has one. It sees all tokens,
	// and its attention says what the next step fetches; nothing of it stays.
	bool keep = true;
	// Kept tokens behind the sequence's next one are 1, 2, .. (KvCache::step_tokens()): each sees those before it, and
	// truncate() can take them back. In a step such rows come behind all next tokens, those of a sequence in order.
	uint32_t draft = 0;
};

class KvStep {
 public:
	// Places the new tokens. Where that fails - no page: RowError; no memory - every sequence is as it was before.
	// Flushes that are judged by score read their sums first: one submission and wait more, once per flush. Sequences
	// are of one pool.
	KvStep(Backend&, KvScratch&, KvPool&, std::span<const StepRow>, uint32_t n_heads);
	// A step that did not end(): sequences are as they were before. Once work has been enqueued, those whose window
	// flushed or whose row feeds a score are empty instead.
	~KvStep();
	KvStep(const KvStep&) = delete;

	void before_layer(uint32_t l); // flushes that were due
	// Where rows first .. first + n - 1 store K and V; sets n to how many rows one op can store.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	void stored(uint32_t l); // after all rows have been stored
	// out, q (rows, n_heads, head_dim): attention of every row over its own sequence; scores where a policy asks.
	void attend(uint32_t l, const View& out, const View& q, const Softmax& = {});
	// The same behind it, for a layer of the model that has no keys and values of its own; its queries change no
	// scores.
	void attend_again(uint32_t l, const View& out, const View& q, const Softmax& = {});
	// Everything has been enqueued: begins to fetch what the next step reads, layer by layer as the device comes to
	// know it. Submits; returns before the last ops are done.
	void fetch_next();
	void end(); // the step's work is done: the tokens are cached

 private:
	struct Layer {
		MovePlan moves;
		ReadPlan read, fetched_read; // fetched_read: of rows that attend once more, to what they have chosen
		ScorePlan score;
		WeighPlan weigh;
		size_t dst_at = 0; // words in the table: (rows, n_kv_heads, 2), KvDst::at
		// Of each row: the chunk its new K and V go to, and tokens per page there; kNone: heads go to different chunks,
		// by way of `single`.
		std::vector<std::pair<uint32_t, uint32_t>> where;
		std::vector<ChunkRows> scatter; // `single` -> slots
		size_t shares_at = 0;           // words in the table: of part_share()
		std::vector<uint32_t> picks;    // as read: of every chooser
		std::vector<float> shares;      // (sharers, n_heads)
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
	void choose(uint32_t l, const View& q, float softcap);
	void take_picks(uint32_t l);
	void attend_to_fetched(uint32_t l, const View& out, const View& q, const Softmax&);

	Backend& be_;
	KvScratch& scratch_;
	KvPool& pool_;
	std::vector<StepRow> rows_;
	std::vector<KvSequence*> seqs_;  // of the rows that are kept and no drafts, which come first
	std::vector<uint32_t> n_tokens_; // of seqs_: tokens in this step
	RowMasks masks_;                 // of rows with drafts behind them
	KvShape shape_;
	uint32_t n_heads_;
	StepTable table_;
	std::vector<Layer> layers_;
	std::vector<uint32_t> scoring_;        // rows that feed their sequence's score
	std::vector<KvSequence*> judged_;      // their sums start again with this step
	std::vector<std::vector<float>> sums_; // of attention, of each kept row's sequence, where a flush is judged by them
	size_t scoring_at_ = 0;                // word of the list in the table
	View parts_, lse_;
	bool running_ = false, done_ = false; // work has been enqueued; end() was called

	// ---- of sequences that fetch
	std::vector<KvSequence*> fetching_;
	std::vector<Chooser> choosers_;
	std::vector<uint32_t> sharers_; // kept rows whose share on f16 tokens is measured
	size_t top_at_ = 0, edits_at_ = 0;
	uint32_t n_top_ = 0, n_edits_ = 0, n_picks_ = 0, picks_at_ = 0, shares_at_ = 0; // words of scratch_.fetch
	Buffer edits_;                                                                  // of masks, inside a layer
};

} // namespace kvrun
