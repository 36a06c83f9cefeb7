// Decode steps: the next token of any number of sequences at once, weights read once for all of them.
#pragma once
#include "engine/cache/step.h"
#include "engine/run/graph.h"
#include "engine/run/logit_blocks.h"
#include "engine/run/rope_table.h"

namespace kvrun {

struct DecodeRow { // the next token of one sequence
	KvSequence* seq;
	const RopeTable* rope;
	uint32_t token;
};

class Decoder {
 public:
	// most_rows: of one step, at most Graph::kLogitRows.
	Decoder(Graph&, KvScratch&, uint32_t most_rows);

	// Appends each row's token to its sequence. A sequence that fetches runs a speculative token beside its own, which
	// says what the next step fetches; before its first step there is one of that alone. Returns logits (rows, vocab),
	// valid until the next call. A failure leaves every sequence as it was, unless it comes once the device is at work
	// (KvStep::~KvStep()).
	std::span<const float> decode(KvPool&, std::span<const DecodeRow> rows);
	uint32_t most_rows() const { return most_rows_; }
	size_t bytes() const { return memory_.bytes(); }

 private:
	struct Row {
		StepRow step;
		const RopeTable* rope;
		uint32_t token, position;
	};
	// Runs the rows through all layers; those that are kept come first, and their logits are read to logits_, those of
	// the others, which come behind them, lead to the next speculative tokens.
	void run(KvPool&, std::span<const Row>);

	Graph& graph_;
	KvScratch& scratch_;
	uint32_t most_rows_;
	Buffer memory_;
	View x_, tokens_, rope_; // (2 most_rows, dim) f32, (2 most_rows) u32, (2 most_rows, rotary_dim / 2, 2) f32
	std::vector<float> host_rope_, logits_, guesses_;
	LogitBlocks likeliest_; // of guesses_
};

} // namespace kvrun
