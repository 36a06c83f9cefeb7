// What a device does to carry out the moves of one layer, of one or more sequences: gather f16 slots, compute parameter
// blocks, pack, store.
#pragma once
#include "engine/kv_device/sequence.h"
#include "engine/kv_device/step_table.h"
#include <compare>

namespace kvrun {

// First kv head of a move, and one past its last.
inline std::pair<uint32_t, uint32_t> heads_of(uint32_t head, uint32_t n_kv_heads) {
	return head == kAllHeads ? std::pair{0u, n_kv_heads} : std::pair{head, head + 1};
}

// Rows [first, first + n) of keys and values on their way from or to f16 slots of one pool chunk.
struct ChunkRows {
	View pool;
	uint32_t page; // tokens per f16 page in this chunk
	uint32_t first, n;
	size_t at; // first word in the table of (n, n_kv_heads, 2) words, KvDst::at
	KvDst dst(const Buffer& words, uint32_t n_kv_heads) const {
		return {pool, pool, table_view(words, at, n, n_kv_heads, 2), page};
	}
};
struct LeavingRow { // one kv head of a gathered row, and the token it holds
	uint32_t head, row, position;
	auto operator<=>(const LeavingRow&) const = default;
};
struct SlotCell { // one kv head of one row, and its place in the f16 tier
	uint32_t row, head;
	uint32_t page; // tokens of an f16 page
	KvSequence::F16Slot slot;
};
// Returns one ChunkRows per chunk and page size; it covers the rows from the first to the last cell there. Rows
// without a cell are skipped.
std::vector<ChunkRows> lay_rows(const KvPool&, std::span<const SlotCell>, uint32_t n_kv_heads, StepTable&);

class MovePlan {
 public:
	// Rows from `tail` on of the source keys and values receive the f16 slots that leave; earlier rows hold a prompt's
	// tokens.
	void begin(uint32_t n_kv_heads, uint32_t tail);
	void add(const KvSequence&, uint32_t l, const KvMoves&);
	void end(const KvPool&, StepTable&); // writes all words into the table
	// Call once `words` has the table's words. src: source keys and values, at least rows() rows from src.first on.
	void enqueue(Backend& be, const Buffer& words, const KvRows& src) {
		while (!enqueue_some(be, words, src, UINT64_MAX)) {}
	}
	// The same in parts: enqueues moves of about `most_tokens` tokens; returns true once all moves are enqueued.
	bool enqueue_some(Backend&, const Buffer& words, const KvRows& src, uint64_t most_tokens);
	// Gathered rows, sorted, of the sequence that add() was called for as number i; only for plans that fetch.
	std::span<const LeavingRow> leaving(size_t i) const { return leaving_[i]; }
	uint32_t rows() const { return rows_; } // rows of the source, gathered ones included
	bool empty() const { return cells_in_.empty() && blocks_.empty() && packs_.empty() && cells_out_.empty(); }

 private:
	struct Pack {
		PackArgs args;
		PageChunks chunk;
		std::vector<PackWork> work;
		size_t work_at = 0;
	};
	struct Block {
		BlockArgs args;
		uint32_t chunk;
		std::vector<BlockWork> work;
		size_t work_at = 0;
	};
	void gather(const KvSequence&, uint32_t l, const KvMoves&);
	void add_block(const KvSequence&, uint32_t l, const KvBlockMove&, uint32_t first_source);
	void add_pack(const KvSequence&, uint32_t l, const KvMove&, uint32_t first_source);
	void add_stores(const KvSequence&, uint32_t l, const KvMoves&);

	std::vector<SlotCell> cells_in_, cells_out_; // gathered, stored
	std::vector<ChunkRows> loads_, stores_;
	std::vector<std::vector<LeavingRow>> leaving_;
	std::vector<Block> blocks_;
	std::vector<Pack> packs_;
	std::vector<uint32_t> sources_; // rows of the source
	size_t sources_at_ = 0;
	uint32_t rows_ = 0, n_kv_heads_ = 0;
	size_t next_pack_ = 0, next_item_ = 0; // of enqueue_some(): packs_[next_pack_].work[next_item_]
	bool started_ = false;                 // loads and blocks have been enqueued
};

} // namespace kvrun
