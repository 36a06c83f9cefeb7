// Keys of an indexer (Config::indexer): those of a sequence, in pages of the pool.
#pragma once
#include "engine/kv_device/pool.h"
#include "engine/kv_host/plan.h"
#include <functional>
#include <memory>

namespace kvrun {

struct IndexShape {
	uint32_t n_layers = 0;   // layers with an indexer; 0: the model has none
	uint32_t first = 0;      // layer of the pool that has the pages of the first of them
	uint32_t dim = 0;        // channels of a key, f16
	uint32_t block = 1;      // tokens of a block, which has one key
	uint32_t most = 0;       // blocks that a row attends to, beside the tokens behind the last whole one
	bool of_entries = false; // what is chosen are entries of the blocks, not their tokens
	// Config::indexer's: a row makes `heads` choices among blocks of `pool` tokens, beside the last `local` ones.
	uint32_t pool = 0, local = 0, heads = 1;
	uint32_t from = 0; // so many first layers of the cache attend to all tokens
	static constexpr uint32_t kPageKeys = 256;
	uint32_t page_words() const { return kPageKeys * dim / 2; }
	uint32_t keys(uint32_t n_tokens) const { return n_tokens / block; }
	// Tokens of what is chosen, and how many of these a row that sees so many tokens chooses from.
	uint32_t chosen_block() const { return pool ? pool : block; }
	uint32_t blocks(uint32_t n_tokens) const {
		const uint32_t begun = pool ? (n_tokens + pool - 1) / pool : keys(n_tokens);
		return begun - (begun < local ? begun : local);
	}
	// Whether a row that sees so many tokens attends to some of them only.
	bool chooses(uint32_t n_tokens) const { return n_layers && blocks(n_tokens) > most; }
	size_t token_bytes() const { return n_layers ? (size_t(n_layers) * dim * 2 + block - 1) / block : 0; }
};

// The plan of a cache beside an indexer. A policy that fetches chooses tokens itself, so its rows attend to all others.
KvPlan with_index(KvPlan, const IndexShape&);

// A token's keys are written when its step or prompt runs, before rows read them, and are never changed. So a sequence
// only has pages and a length.
class IndexSequence {
 public:
	IndexSequence(Backend& be, KvPool& pool, const IndexShape& shape)
	    : be_(be), pool_(pool), shape_(shape), pages_(shape.n_layers) {}
	~IndexSequence() { reset(); }
	IndexSequence(const IndexSequence&) = delete;
	// Returns a new sequence with the same keys. Pages are shared until either writes to them.
	std::unique_ptr<IndexSequence> fork() const;
	void reset() { truncate(0); }
	void truncate(uint32_t n_tokens); // no effect if there are fewer

	uint32_t n_tokens() const { return n_tokens_; }
	const IndexShape& shape() const { return shape_; }
	// Makes room for keys of n more tokens: new pages, and copies of shared ones that they would write to. Throws
	// Error{OutOfMemory}; the sequence then holds the same tokens.
	void make_room(uint32_t n);
	void append(uint32_t n) { n_tokens_ += n; } // behind make_room(), when their keys are written
	// Page i of layer l: keys kPageKeys * i and following.
	KvPool::Addr page(uint32_t l, uint32_t i) const { return pool_.addr(pages_[l][i]); }

	// ---- saving to a file: whole pages by layer. Both functions submit and wait.
	void save_device(const std::function<void(std::span<const std::byte>)>& sink) const;
	void restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source);
	// Appends n tokens whose keys are `halves`, over and over; for measurements.
	void fill(uint32_t n, std::span<const uint16_t> halves);

 private:
	uint32_t pages_of(uint32_t n_tokens) const {
		return (shape_.keys(n_tokens) + IndexShape::kPageKeys - 1) / IndexShape::kPageKeys;
	}
	uint32_t take_page(uint32_t l);
	View words(uint32_t id) const;

	Backend& be_;
	KvPool& pool_;
	IndexShape shape_;
	std::vector<std::vector<uint32_t>> pages_; // by layer
	uint32_t n_tokens_ = 0;
};

} // namespace kvrun
