// The cache side of one prompt block of one sequence: exact attention over the block's own keys and values, scores, and
// storing into pages. A block is processed layer by layer, a layer in pieces of consecutive rows.
#pragma once
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/scratch.h"
#include "engine/kv_device/undo.h"

namespace kvrun {

struct KvMemory { // of keys and values
	View k, v;    // (n_kv_heads, rows, channels) f16
};

class KvPrefill {
 public:
	// own: memory for this block's keys and values of one layer: older_rows() rows, its tokens, tail_rows() rows.
	// own.window: window of all layers, whose cache follows make_window_plan(); rows then see older tokens as copies in
	// older_rows(), ordered by position. most_rows: limit of a piece. probes: prompt rows (ascending) that feed the
	// score; empty: the policy chooses. Throws Error{OutOfMemory}; the sequence is then unchanged. by_layer: memory
	// like that of `own` for each layer; pieces of several layers may then come in turns, each layer's in order, and
	// layers end in order.
	KvPrefill(Backend&, KvScratch&, KvSequence&, uint32_t n_new, const KvRows& own, uint32_t n_heads,
	          uint32_t most_rows, std::span<const uint32_t> probes = {}, std::vector<KvMemory> by_layer = {});
	// Cancels the block unless end() was called: restores the sequence, or leaves it empty where that is impossible
	// (device lost, or out of memory).
	~KvPrefill();
	KvPrefill(const KvPrefill&) = delete;
	// Scratch rows that a block needs after its own tokens, for f16 slots that leave the window.
	static uint32_t tail_rows(const KvSequence&);
	// Rows for copies of older tokens.
	static uint32_t older_rows(const KvSequence&, Window);
	// Whether attend() must be called even for rows whose result is unused: their queries feed scores or balancers.
	bool wants_queries() const { return !probes_.empty() || balances_; }
	void begin_layer(uint32_t l);
	// Copies this block's keys and values of layer l from a sequence of the same pool that keeps every token in f16 and
	// holds the block from its token `first` on. Replaces writing to destination().
	void load_own(uint32_t l, const KvSequence& from, uint32_t first);
	KvDst destination(uint32_t l, uint32_t first, uint32_t n) const; // rows of the block -> its own K and V
	KvRows own(uint32_t l) const; // memory of layer l; first: the block's first token
	// Of latent attention: cached older tokens of layer l become rows 0, 1, .. of `to` in f16. Returns their number.
	uint32_t unpack_older(uint32_t l, const KvMemory& to);
	// out, q (n, n_heads, head_dim): exact attention of rows first .. first + n - 1 over older tokens and the block's
	// own; adds scores where the policy asks. counts: false for a model layer without keys and values of its own: its
	// queries change neither scores nor balancers. together: these rows see each other, else causal.
	// chosen: (n * KvPlan::choices, words) u32 bits of the tokens, by position, that rows attend to (op::IndexPick);
	// empty: all. lse: for rows' normalisers where the policy does not ask for them; may be empty.
	void attend(uint32_t l, const View& out, const View& q, uint32_t first, const Softmax& = {}, bool counts = true,
	            bool together = false, const View& chosen = {}, const View& lse = {});
	// Of a cache of entries of blocks, where a block may have none: stores the entries that rows say, kSkip: none, by
	// their numbers in the block, in order.
	KvDst destination_of(uint32_t l, std::span<const uint32_t> entries);
	// Attention of rows that are none of the cache's, each to the entries of this block before `visible` and to all
	// older ones; of both only to the chosen ones, if `chosen` is not empty, with as many 0 bits behind as there are
	// rows. `own` has as many rows behind the entries, all finite. lse (n, n_heads).
	void attend_entries(uint32_t l, const View& out, const View& lse, const View& q, std::span<const uint32_t> visible,
	                    const Softmax&, const View& chosen);
	// For attention that is computed elsewhere: whether some of rows first .. first + n - 1 feed the scores; memory for
	// its lse, (n, n_heads); what the rows' tokens receive.
	bool scores_rows(uint32_t first, uint32_t n) const;
	View lse(uint32_t n) const { return rows(lse_, 0, n); }
	void score(uint32_t l, const View& q, const View& lse, uint32_t first, const Softmax&, const View& chosen = {});
	// Scratch and leaving f16 slots -> pages. A policy that ranks reads its scores first: a submission and a wait.
	void end_layer(uint32_t l) {
		plan_moves(l);
		while (!move(UINT64_MAX)) {}
	}
	// The same in parts: plans the moves, then enqueues about `most_tokens` tokens per call; returns true when done.
	void plan_moves(uint32_t l);
	bool move(uint64_t most_tokens);
	// Attention that each token of the block received in the layer of the last plan_moves() call, in the form that
	// KvCache::prompt_moves() takes: (n_kv_heads, n_new); empty for policies without scores.
	std::span<const float> layer_scores() const { return new_scores_; }
	std::span<const uint32_t> probes() const { return probes_; }
	void end(); // the block's tokens are cached now

 private:
	void prepare(uint32_t first_token);
	View sums(uint32_t l) const;
	View q_max(uint32_t l) const;
	void load_older(uint32_t l);
	void load_rows(uint32_t l, const KvSequence& from, uint32_t first_token, uint32_t n, uint32_t first_row);
	const KvRead* older(uint32_t l, uint32_t n_rows, const Softmax&,
	                    const View& chosen); // tokens before this block; null if none

	Backend& be_;
	KvScratch& scratch_;
	KvSequence& seq_;
	KvRows own_; // first: the block's first token
	std::vector<KvMemory> by_layer_;
	uint32_t n_new_, n_heads_, most_rows_;
	bool done_ = false;
	bool balances_ = false;          // this block makes the channel balancers
	std::vector<uint32_t> probes_;   // rows of the block that feed the score, ascending
	std::vector<float> new_scores_;  // (n_kv_heads, n_new) of the latest layer
	Buffer dst_;                     // destinations in own_
	Buffer store_;                   // moves of a layer
	Buffer older_words_;             // places of older tokens, of a layer
	Buffer score_;                   // memory of lse_, and of sums_ and q_max_ for each layer of by_layer_
	Buffer read_words_, slot_words_; // work lists of older tokens
	Buffer rows_;                    // probe rows of a piece
	Buffer entry_words_;             // destinations of entries, bits of those that rows see
	View lse_, sums_, q_max_;        // (most_rows, n_heads), (n_kv_heads, n_new), (n_kv_heads, head_dim) f32
	size_t layer_sums_ = 0;          // bytes from one layer's sums_ to the next one's
	MovePlan moves_;                 // of the latest layer
	KvUndo undo_;
	ReadPlan read_plan_; // of the latest older()
	RowChoices choices_; // of the same, if its rows choose
	ScorePlan slot_plan_;
	KvRead read_;
	size_t choices_at_ = 0; // first word of their work in read_words_
	uint32_t move_layer_ = 0;
	uint32_t read_layer_ = kNone, read_rows_ = 0; // layer and rows of read_plan_
};

} // namespace kvrun
