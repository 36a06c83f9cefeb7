// Decode steps: the next token, or several, of any number of sequences at once, weights read once for all of them.
#pragma once
#include "engine/kv_device/step.h"
#include "engine/run/cache_layers.h"
#include "engine/run/layer_runner.h"
#include "engine/run/logit_blocks.h"
#include "engine/run/rope_table.h"

namespace kvrun {

struct DecodeRow { // the next token of one sequence
	KvSequence* seq;
	KvSequence* window_seq; // of layers with a window; null where the model has no such cache
	StateSequence* states;  // of recurrent layers; null where the model has none
	const RopeTables* rope;
	uint32_t token;
	uint32_t top = 0;                      // so many of its largest logits suffice; 0: all are wanted
	std::span<const uint32_t> drafts = {}; // tokens that may come behind it: a row each, with the same `top`
};

class Decoder {
 public:
	// most_rows: of one step, drafts included, at most LayerRunner::kLogitRows.
	Decoder(LayerRunner&, const CacheLayers&, KvScratch&, KvScratch& window_scratch, uint32_t most_rows);

	// Appends each row's token to its sequence, then its drafts, which KvCache::step_tokens() of its caches allows.
	// Every token's logits are the bits that a step of its own would give. A sequence that fetches runs a speculative
	// token beside its own, which says what the next step fetches; before its first step there is one of that alone.
	// Returns the logits of the rows' tokens, then those of the first row's drafts, of the second's, .., valid until
	// the next call; those that are whole follow each other in memory. A failure leaves every sequence as it was,
	// unless it comes once the device is at work (KvStep::~KvStep()).
	std::span<RowLogits> decode(KvPool&, std::span<const DecodeRow> rows);
	// Row i of that step came out of the layers, and as logits, as numbers: has_norm() and has_choice().
	bool usable(uint32_t i) const;
	// All logits of row i of the latest decode(), also where only the largest were asked for; until the next one.
	std::span<const float> whole_row(uint32_t i);
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
	};
	// Runs the rows through all layers; those that are kept come first, and their logits come to row_logits_, those of
	// the others, which come behind them, lead to the next speculative tokens.
	void run(KvPool&, std::span<const Row>);
	void enqueue_logits(std::span<const Row> kept);
	void read_logits(std::span<const Row> kept); // after the wait
	void enqueue_guesses(const View& x);
	uint32_t guess(uint32_t i); // after the wait

	LayerRunner& runner_;
	const CacheLayers& cache_layers_;
	KvScratch &scratch_, &window_scratch_;
	uint32_t most_rows_;
	Buffer memory_;
	View x_;            // (2 most_rows, dim) f32
	TokenViews tokens_; // of 2 most_rows
	RopeViews rope_;    // of 2 most_rows
	std::array<std::vector<float>, kMostRopes + 1> host_rope_;
	bool lists_; // the device finds the largest logits
	CandidateLists candidates_, guessed_;
	std::vector<float> logits_, guesses_; // (rows, vocab), where they are read
	std::vector<float> hidden_; // (rows, dim) residual stream of the rows that are kept, behind the last layer
	std::vector<RowLogits> row_logits_;
	LogitBlocks likeliest_; // of guesses_
};

} // namespace kvrun
