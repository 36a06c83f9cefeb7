// The indexer's part of a decode step or a piece of a prompt: where new keys go, and which tokens rows attend to.
#pragma once
#include "engine/kv_device/index.h"
#include "engine/kv_device/step_table.h"

namespace kvrun {

struct IndexRow {
	IndexSequence* seq; // null: the row's sequence has no indexer and attends to all tokens
	uint32_t position;  // tokens of the sequence before the row's own
};

struct IndexScratch { // device memory that steps and prompts share
	Buffer places;    // where keys are stored
	Buffer words;     // work lists
	Buffer score;     // (choices, blocks) f32
	Buffer bits;      // (choices, words) u32
	size_t bytes() const { return places.bytes() + words.bytes() + score.bytes() + bits.bytes(); }
};

class IndexStep {
 public:
	// Rows of which one at least has a sequence; those of a sequence follow each other in its order. Layers first_layer
	// .. first_layer + n_layers - 1 of the indexer's. Call make_room() of the sequences before, and append() behind the
	// work.
	IndexStep(Backend&, IndexScratch&, KvPool&, std::vector<IndexRow> rows, uint32_t first_layer, uint32_t n_layers);
	bool chooses(uint32_t row) const { return rows_[row].seq && shape_.chooses(rows_[row].position + 1); }
	// Where rows first .. first + n - 1 store the keys of blocks that end with them; sets n to how many rows one op can
	// store.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	// Bits of the tokens that rows first .. first + q.shape[0] - 1 attend to, (rows * IndexShape::heads, words) u32:
	// op::IndexPick. The keys of all their blocks are stored. q (n, n_heads, dim); weights (n, n_heads), or empty.
	// `to`: memory for the bits; empty: that of scratch, until the next call. Of IndexShape::of_entries the bits are
	// those of blocks, with so many 0 bits behind as there are rows.
	View choose(uint32_t l, const View& q, const View& weights, uint32_t first, const View& to = {});
	static uint32_t words(uint32_t n_tokens) { return align_up(std::max(n_tokens, 1u), 128u) / 32; } // of a row's bits
	// So many rows choose at once: of a prompt, whose last token is at this position.
	static uint32_t most_rows(const IndexShape&, uint32_t last_position);

 private:
	struct Group { // keys in one chunk of the pool
		uint32_t chunk;
		size_t at; // words in scratch_.words
		uint32_t n_work;
	};
	void plan(uint32_t first, uint32_t n); // the work lists of choose(), of all layers

	Backend& be_;
	IndexScratch& scratch_;
	KvPool& pool_;
	std::vector<IndexRow> rows_;
	uint32_t first_layer_, n_layers_;
	IndexShape shape_;
	std::vector<uint32_t> chunks_; // (layers, rows): where a row's key goes, or kNone
	// Of the rows that plan() was called for:
	uint32_t first_ = kNone, n_ = 0, most_ = 0; // most_: tokens that a row sees
	size_t seen_at_ = 0;
	std::vector<std::vector<Group>> groups_; // by layer
};

} // namespace kvrun
