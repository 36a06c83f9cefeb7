// The cache side of one prompt block of one sequence: exact attention over the block's own keys and values, scores, and
// the way into pages. A block goes layer by layer, a layer in pieces of consecutive rows.
#pragma once
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/scratch.h"
#include "engine/kv_device/undo.h"

namespace kvrun {

class KvPrefill {
 public:
	// own: this block's own keys and values of one layer: older_rows() rows, its tokens, tail_rows() rows. own.window:
	// of all layers, whose cache is of make_window_plan(); rows then see older tokens as copies in older_rows(), in the
	// order of their positions. most_rows: of a piece. probes: prompt rows (ascending) that feed the score; empty: the
	// policy's choice. Throws Error{OutOfMemory} with the sequence as it was.
	KvPrefill(Backend&, KvScratch&, KvSequence&, uint32_t n_new, const KvRows& own, uint32_t n_heads,
	          uint32_t most_rows, std::span<const uint32_t> probes = {});
	// Gives the block up unless end() was called: the sequence is what it was before, or empty where that is impossible
	// (the device is lost, no memory was left).
	~KvPrefill();
	KvPrefill(const KvPrefill&) = delete;
	// Rows a block's scratch needs behind its own tokens, for f16 slots that leave their window.
	static uint32_t tail_rows(const KvSequence&);
	// Rows that copies of older tokens take.
	static uint32_t older_rows(const KvSequence&, uint32_t window);
	// Whether attend() must be called for rows whose result nobody needs: their queries count for scores or balancers.
	bool wants_queries() const { return !probes_.empty() || balances_; }
	void begin_layer(uint32_t l);
	// Copies of this block's keys and values of layer l from a sequence of the same pool that keeps every token in f16
	// and holds the block as its tokens `first` and following: in place of what would be written to destination().
	void load_own(uint32_t l, const KvSequence& from, uint32_t first);
	KvDst destination(uint32_t first, uint32_t n) const; // rows of the block -> its own K and V
	// out, q (n, n_heads, head_dim): exact attention of rows first .. first + n - 1 over older tokens and the block's
	// own; scores where a policy asks. counts: false: of a layer of the model that has no keys and values of its own,
	// whose queries change neither scores nor balancers.
	void attend(uint32_t l, const View& out, const View& q, uint32_t first, const Softmax& = {}, bool counts = true);
	// Scratch and leaving f16 slots -> pages. A policy that ranks reads its scores first: a submission and a wait.
	void end_layer(uint32_t l) {
		plan_moves(l);
		while (!move(UINT64_MAX)) {}
	}
	// The same in parts: what moves is decided, then enqueued, about `most_tokens` tokens at a time; true: all of it.
	void plan_moves(uint32_t l);
	bool move(uint64_t most_tokens);
	// Attention each token of the block received in the layer that plan_moves() was last called for, as
	// KvCache::prompt_moves() takes it: (n_kv_heads, n_new); empty for policies without scores.
	std::span<const float> layer_scores() const { return new_scores_; }
	std::span<const uint32_t> probes() const { return probes_; }
	void end(); // the block's tokens are cached now

 private:
	void prepare(uint32_t first_token);
	void load_older(uint32_t l);
	void load_rows(uint32_t l, const KvSequence& from, uint32_t first_token, uint32_t n, uint32_t first_row);
	const KvRead* older(uint32_t l, uint32_t n_rows,
	                    const Softmax&); // tokens before this block; null if there are none
	void score(uint32_t l, const View& q, const View& lse, uint32_t first, const KvRows& own);

	Backend& be_;
	KvScratch& scratch_;
	KvSequence& seq_;
	KvRows own_; // first: the block's first token
	uint32_t n_new_, n_heads_, most_rows_;
	bool done_ = false;
	bool balances_ = false;          // this block makes the channel balancers
	std::vector<uint32_t> probes_;   // rows of the block that feed the score, ascending
	std::vector<float> new_scores_;  // (n_kv_heads, n_new) of the latest layer
	Buffer dst_;                     // destinations in own_
	Buffer store_;                   // moves of a layer
	Buffer older_words_;             // places of older tokens, of a layer
	Buffer score_;                   // what lse_, sums_ and q_max_ look at
	Buffer read_words_, slot_words_; // work lists of older tokens
	Buffer rows_;                    // probe rows of a piece
	View lse_, sums_, q_max_;        // (most_rows, n_heads), (n_kv_heads, n_new), (n_kv_heads, head_dim) f32
	MovePlan moves_;                 // of the latest layer
	KvUndo undo_;
	ReadPlan read_plan_; // of the latest older()
	ScorePlan slot_plan_;
	KvRead read_;
	uint32_t move_layer_ = 0;
	uint32_t read_layer_ = kNone, read_rows_ = 0; // what it is of
};

} // namespace kvrun
