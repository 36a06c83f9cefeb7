// One sequence on a device: its cache, the tables attention reads, and what a step or a prompt does to them.
#pragma once
#include "engine/run/kv_pool.h"
#include <array>
#include <memory>

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

// A stretch of logical pages of one tier whose parts lie in the same pool chunks.
struct PageRun {
	Tier tier;
	std::array<uint32_t, 4> chunk; // of K codes, V codes, K params, V params
	uint32_t first, n;             // pages, numbered over all tiers of the layer (row of the page table)
	bool operator==(const PageRun&) const = default;
};

class KvState {
 public:
	KvState(Backend&, const KvPlan&, KvPool&, uint32_t max_tokens, uint64_t seed = 1);

	uint32_t n_tokens() const { return cache_.n_tokens(); }
	uint32_t max_tokens() const { return max_tokens_; }
	KvBytes bytes() const { return cache_.bytes(); }
	const KvCache& cache() const { return cache_; }
	const KvPlan& plan() const { return plan_; }
	void reset() { cache_.reset(); }

 private:
	friend class MovePlan;
	friend class ReadPlan;
	friend class KvStep;
	friend class KvPrompt;

	void sync(); // page table and live bits on the device = the cache's
	void fit_tables();
	void sync_pages(uint32_t l, Tier);
	void sync_live(uint32_t l, Tier);
	void write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now, size_t device_word);
	uint32_t tier_first(Tier) const;          // row of the tables where a tier's pages begin
	std::span<const PageRun> runs(uint32_t l) const { return layers_[l].runs; }
	View page_table(uint32_t l) const;        // (table_pages, 4) u32
	View live_bits(uint32_t l) const;         // (n_heads, table_pages, 4) u32
	// Pool words that slot `slot` of the f16 tier starts at: K's first word, V's first word; and their chunk.
	struct F16Slot {
		uint32_t chunk, k, v;
	};
	F16Slot f16_slot(uint32_t head, uint32_t page_id, uint32_t index) const;

	struct Layer {
		uint64_t version[kTiers] = {};
		std::vector<uint32_t> table; // (table_pages, 4) what the device has
		std::vector<PageRun> runs;
	};

	Backend& be_;
	const KvPlan& plan_;
	KvPool& pool_;
	KvCache cache_;
	uint32_t max_tokens_;
	uint32_t tier_pages_[kTiers] = {}; // rows of the table each tier may take
	uint32_t table_pages_ = 0;         // their sum
	Buffer tables_;                    // page tables (n_layers, table_pages, 4), then live (n_groups, n_heads, table_pages, 4)
	std::vector<Layer> layers_;
	std::vector<uint32_t> live_;       // (n_groups, n_heads, table_pages, 4) what the device has
};

// Device memory the steps of an engine share: tables of one step, partial states of attention.
struct KvScratch {
	Buffer step;        // StepTable of a decode step, or of one layer's reads of a prompt
	Buffer store;       // destinations of one layer's prompt tokens
	Buffer prompt;      // destinations in the prompt's own K and V
	Buffer parts;       // partial states of attention
	Buffer gather;      // f16 slots on their way into pages: keys, then values
	StepTable table;    // what goes to `step`
	View parts_view(Backend&, uint32_t n_parts, uint32_t n_heads, uint32_t head_dim); // (n_parts, n_heads, head_dim + 2)
	PromptKv gather_rows(Backend&, const KvShape&, uint32_t n_rows);
	size_t bytes() const { return step.bytes() + store.bytes() + prompt.bytes() + parts.bytes() + gather.bytes(); }
};

// What attention reads of one layer for some rows: built on the host, then its words go to the device.
class ReadPlan {
 public:
	// n_rows rows that each attend to the whole cache of layer l of `state`, in pieces of at most `split` pages, and get
	// `extra` parts more without a work item behind them.
	void build(const KvState& state, uint32_t l, uint32_t n_rows, uint32_t split, uint32_t extra, StepTable&);
	// What build() described, once the table's words are in `words`; valid until the next build().
	KvRead read(const KvState&, uint32_t l, const Buffer& words, const View& parts) const;
	uint32_t n_parts() const { return n_parts_; }

 private:
	std::vector<AttendGroup> groups_;
	uint32_t n_rows_ = 0, n_parts_ = 0, n_work_ = 0;
	size_t work_at_ = 0, row_parts_at_ = 0; // words in the step table
};

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
	struct Rows { // kv_load or kv_store of rows [first, first + n) from or to one pool chunk
		View pool;
		uint32_t first, n;
		size_t at; // words in the table
	};
	struct Pack {
		PackArgs args;
		std::array<uint32_t, 5> chunk; // of K codes, V codes, K params, V params, V factors
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

	std::vector<Rows> loads_, stores_;
	std::vector<Block> blocks_;
	std::vector<Pack> packs_;
	std::vector<uint32_t> sources_; // rows of the source
	size_t sources_at_ = 0;
	uint32_t rows_ = 0, n_kv_heads_ = 0, f16_page_ = 0;
};

// The cache side of one decode step: one new token for each state.
class KvStep {
 public:
	KvStep(Backend&, KvScratch&, std::span<KvState* const>, uint32_t n_heads);
	void before_layer(uint32_t l);                          // flushes that were due
	// Where rows first .. first + n - 1 store K and V; sets n to how many rows share the memory.
	KvDst destination(uint32_t l, uint32_t first, uint32_t& n) const;
	KvRead read(uint32_t l, uint32_t row) const;            // what one row attends to; a T = 1 read

 private:
	struct LayerStep {
		std::vector<ReadPlan> read;   // (rows)
		size_t dst_at;                // words in the step table: (rows, n_kv_heads, 2)
		std::vector<uint32_t> chunk;  // (rows) pool chunk of the destination
		std::vector<MovePlan> moves;  // (rows)
	};
	Backend& be_;
	KvScratch& scratch_;
	std::vector<KvState*> states_;
	std::vector<LayerStep> layers_;
	View parts_;
};

// The cache side of one prompt block of one sequence.
class KvPrompt {
 public:
	KvPrompt(Backend&, KvScratch&, KvState&, uint32_t n_new, const PromptKv& kv, uint32_t n_heads);
	~KvPrompt();                                            // gives the block up unless end() was called
	KvPrompt(const KvPrompt&) = delete;
	// Rows a prompt's scratch needs behind its own tokens, for f16 slots that leave their window.
	static uint32_t tail_rows(const KvState&);
	KvDst scratch(uint32_t first, uint32_t n) const;        // rows of the block -> the prompt's own K and V
	const KvRead* older(uint32_t l, uint32_t n_rows);       // tokens before this block; null if there are none
	void end_layer(uint32_t l);                             // scratch and leaving f16 slots -> pages
	void end();                                             // the block's tokens are cached now

 private:
	Backend& be_;
	KvScratch& scratch_;
	KvState& state_;
	PromptKv kv_;
	uint32_t n_new_, n_heads_;
	bool done_ = false;
	MovePlan moves_;
	ReadPlan plan_;                                         // of the latest older()
	KvRead read_;
	uint32_t read_layer_ = kNone, read_rows_ = 0;
};

} // namespace kvrun
