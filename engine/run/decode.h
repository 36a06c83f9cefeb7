// Decode steps: the next token, or several, of several sequences in one step, which reads the weights once.
#pragma once
#include "engine/kv_device/index_step.h"
#include "engine/kv_device/step.h"
#include "engine/run/cache_layers.h"
#include "engine/run/layer_runner.h"
#include "engine/run/logit_blocks.h"
#include "engine/run/rope_table.h"
#include "models/ngram_table.h"
#include <map>

namespace kvrun {

struct DecodeRow { // the next token of one sequence
	KvSequence* seq;
	KvSequence* window_seq; // of layers with a window; null where the model has no such cache
	StateSequence* states;  // of recurrent layers; null where the model has none
	const RopeTables* rope;
	uint32_t position; // of the token (engine/run/positions.h)
	uint32_t token;
	uint32_t top = 0;                      // number of largest logits that suffice; 0: all are wanted
	std::span<const uint32_t> drafts = {}; // tokens that may follow it: one row each, with the same `top`
	std::span<const uint32_t> before = {}; // tokens of the sequence; for Config::ngrams
	IndexSequence* index = nullptr;        // of layers with an indexer; null: they attend to all tokens
	std::vector<Position> starts = {};     // of the token and its drafts: see kBlockStart; empty where not needed
	std::span<const std::unique_ptr<KvSequence>> entries = {}; // of blocks, by CacheLayers::blocks(); it has no drafts
};

class Decoder {
 public:
	// most_rows: limit of one step, drafts included; at most LayerRunner::kLogitRows.
	// grams: of models with Config::ngrams, else null.
	Decoder(LayerRunner&, const CacheLayers&, KvScratch&, KvScratch& window_scratch, IndexScratch&,
	        std::span<KvScratch> entry_scratch, uint32_t most_rows, const NGramTable* grams = nullptr);

	// Appends each row's token to its sequence, then its drafts, which KvCache::step_tokens() of its caches must allow.
	// Every token's logits are bit-identical to those of a separate step. A sequence that fetches also runs a
	// speculative token, which chooses what the next step fetches; its first step is preceded by one with only that.
	// Returns the logits of the rows' tokens, then those of the first row's drafts, of the second's, .., valid until
	// the next call; whole rows of logits are contiguous in memory. A failure leaves every sequence unchanged, unless
	// it happens after work has been enqueued (KvStep::~KvStep()).
	std::span<RowLogits> decode(KvPool&, std::span<const DecodeRow> rows);
	// Whether the hidden state and the logits of row i of that step are finite: has_norm() and has_choice().
	bool usable(uint32_t i) const;
	// All logits of row i of the latest decode(), even if only the largest were requested; valid until the next one.
	std::span<const float> whole_row(uint32_t i);
	// The layers in front of which state() reads the residual stream; the number of layers, as at first: behind them.
	void read_states_at(std::vector<uint32_t> layers) { state_layers_ = std::move(layers); }
	// (layers * dim) hidden states of row i of the latest decode(), side by side; valid until the next call.
	std::span<const float> state(uint32_t i);
	uint32_t most_rows() const { return most_rows_; }
	size_t bytes() const { return memory_.bytes(); }

 private:
	struct Row {
		StepRow step;
		KvSequence* window_seq;
		StateSequence* states;
		const RopeTables* rope;
		uint32_t token, position;
		uint32_t top = 0;
		IndexSequence* index = nullptr;
		Position start = {}; // see DecodeRow::starts
		std::span<const std::unique_ptr<KvSequence>> entries = {};
	};
	void read_grams(std::span<const DecodeRow>);
	// Runs the rows through all layers. Kept rows come first; their logits go to row_logits_. The logits of the other
	// rows choose the next speculative tokens.
	void run(KvPool&, std::span<const Row>);
	std::optional<IndexStep> begin_index(KvPool&, std::span<const Row>);
	// kv, k: the cache whose tokens are chosen, and its layer.
	void choose(IndexStep&, uint32_t l, const LayerRows&, KvStep& kv, uint32_t k, View& chosen);
	void attend_blocks(uint32_t l, const LayerRows&, KvStep& window, KvStep& entries);
	void enqueue_logits(std::span<const Row> kept);
	void read_logits(std::span<const Row> kept); // after the wait
	void enqueue_guesses(const View& x);
	uint32_t guess(uint32_t i); // after the wait

	LayerRunner& runner_;
	const CacheLayers& cache_layers_;
	KvScratch &scratch_, &window_scratch_;
	IndexScratch& index_scratch_;
	std::span<KvScratch> entry_scratch_;
	uint32_t most_rows_;
	const NGramTable* grams_;
	std::vector<float> gram_rows_; // of the step's rows, in order
	Buffer memory_;
	View x_;            // (2 most_rows, dim) f32
	TokenViews tokens_; // of 2 * most_rows rows
	RopeViews rope_;    // of 2 * most_rows rows
	std::array<std::vector<float>, kPositionTables> host_rope_;
	uint32_t long_block_; // tokens of the blocks of kLongStart, or 0
	bool lists_;          // the device finds the largest logits
	CandidateLists candidates_, guessed_;
	std::vector<float> logits_, guesses_;             // (rows, vocab), if they are read
	std::vector<float> hidden_;                       // (rows, dim) residual stream of kept rows after the last layer
	std::vector<uint32_t> state_layers_;              // of read_states_at()
	std::map<uint32_t, std::vector<float>> entering_; // of these layers, the same in front of them
	std::vector<float> state_;
	std::vector<RowLogits> row_logits_;
	LogitBlocks likeliest_; // of guesses_
};

} // namespace kvrun
