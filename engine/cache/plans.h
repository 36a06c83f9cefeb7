// Work lists of the cache on a device: what attention reads, and what the moves of a layer are.
#pragma once
#include "engine/cache/sequence.h"

namespace kvrun {

// Uint32 arrays of one step, collected on the host and written to the device in one piece.
class StepTable {
 public:
	// A place for n words, 256-byte aligned: its offset in words. Fill it through at().
	size_t take(size_t n);
	std::span<uint32_t> at(size_t offset, size_t n) { return std::span(words_).subspan(offset, n); }
	void upload(Backend&, Buffer&); // writes all words; grows the buffer when they do not fit
	void clear() { words_.clear(); }

 private:
	std::vector<uint32_t> words_;
};

// Pages one workgroup of a decode step takes of layer l. A function of the cache's length and the kind of device only,
// so that the same sequence always merges the same parts.
uint32_t decode_split(const DeviceInfo&, const KvState&, uint32_t l);
// The same for a prompt's rows over older tokens. It does not depend on how many rows there are, so that neither do the
// bits of a row.
uint32_t prompt_split(const DeviceInfo&, const KvState&, uint32_t l);

// What attention reads of one layer for some rows: built on the host, then its words go to the device.
class ReadPlan {
 public:
	// n_rows rows that all attend to the whole cache of layer l of `state`, in pieces of at most `split` pages, and get
	// `extra` parts more each without a work item behind them. Which: all tiers, or the f16 tier only.
	enum class Which : uint8_t { All, F16 };
	void build(const KvState& state, uint32_t l, uint32_t n_rows, uint32_t split, uint32_t extra, Which, StepTable&);
	bool empty() const { return groups_.empty(); }
	// What build() described, once the table's words are in `words`; valid until the next build().
	KvRead read(const KvState&, uint32_t l, const Buffer& words, const View& parts) const;
	uint32_t n_parts() const { return n_parts_; }

 private:
	void add_group(const KvState&, uint32_t l, const PageRun&, uint32_t first_work);

	std::vector<AttendGroup> groups_;
	uint32_t n_rows_ = 0, n_parts_ = 0, n_work_ = 0;
	uint32_t row_step_ = 0;                 // parts of a row
	size_t work_at_ = 0, row_parts_at_ = 0; // words in the step table
};

// First head and end of the heads of a move.
std::pair<uint32_t, uint32_t> heads_of(uint32_t head, uint32_t n_kv_heads);

// Rows [first, first + n) of keys and values on their way from or to f16 slots of one pool chunk.
struct ChunkRows {
	View pool;
	uint32_t first, n;
	size_t at; // words in the table: (n, n_kv_heads, 2), KvDst::at
};
struct SlotCell { // one kv head of one row, and its place in the f16 tier
	uint32_t row, head;
	KvState::F16Slot slot;
};
// One ChunkRows per chunk, over the rows from the first to the last cell there; what is no cell is skipped.
std::vector<ChunkRows> lay_rows(const KvPool&, std::span<const SlotCell>, uint32_t n_kv_heads, StepTable&);

// What a device does to carry out the moves of one layer: gather f16 slots, compute parameter blocks, pack, store.
class MovePlan {
 public:
	// Row `tail` and the following ones of the source keys and values receive f16 slots that leave; rows before it hold
	// the prompt's tokens. All words go into the table.
	void build(const KvState&, uint32_t l, const KvMoves&, uint32_t tail, StepTable&);
	// Once the table's words are in `words`. src: source keys and values with at least rows() rows.
	void enqueue(Backend&, const Buffer& words, const PromptKv& src) const;
	uint32_t rows() const { return rows_; } // of the source, gathered ones included
	bool empty() const { return loads_.empty() && blocks_.empty() && packs_.empty() && stores_.empty(); }

 private:
	struct Pack {
		PackArgs args;
		PageChunks chunk;
		std::vector<uint32_t> work, factors; // (n, 8), (n)
		size_t work_at, factors_at;
	};
	struct Block {
		BlockArgs args;
		std::vector<uint32_t> work; // (n, 4)
		size_t work_at;
	};
	void gather(const KvState&, uint32_t l, const KvMoves&, uint32_t tail, StepTable&);
	void add_block(const KvState&, uint32_t l, const KvBlockMove&);
	void add_pack(const KvState&, uint32_t l, const KvMove&);
	void add_stores(const KvState&, uint32_t l, const KvMoves&, StepTable&);

	std::vector<ChunkRows> loads_, stores_;
	std::vector<Block> blocks_;
	std::vector<Pack> packs_;
	std::vector<uint32_t> sources_; // rows of the source
	size_t sources_at_ = 0;
	uint32_t rows_ = 0, n_kv_heads_ = 0, f16_page_ = 0;
};

} // namespace kvrun
