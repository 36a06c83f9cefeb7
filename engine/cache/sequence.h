// One sequence on a device: its cache, and the tables and sums on the device that belong to it.
#pragma once
#include "engine/cache/pool.h"
#include <array>

namespace kvrun {

// The chunks a page's parts lie in: K codes, V codes, K params, V params, V channel factors.
using PageChunks = std::array<uint32_t, 5>;

// A stretch of logical pages of one tier whose parts lie in the same pool chunks.
struct PageRun {
	Tier tier;
	PageChunks chunk;
	uint32_t first, n; // pages, numbered over all tiers of the layer: rows of the page table
};

class KvState {
 public:
	KvState(Backend&, const KvPlan&, KvPool&, uint32_t max_tokens, uint64_t seed = 1);

	uint32_t n_tokens() const { return cache_.n_tokens(); }
	uint32_t max_tokens() const { return max_tokens_; }
	KvBytes bytes() const { return cache_.bytes(); }
	size_t table_bytes() const { return tables_.bytes() + sums_.bytes() + balance_.bytes(); } // allocated beside pages
	KvCache& cache() { return cache_; }
	const KvCache& cache() const { return cache_; }
	const KvPlan& plan() const { return plan_; }
	const KvPool& pool() const { return pool_; }
	void reset();

	// Makes page table and live bits on the device equal to the cache's, writing what changed.
	void sync();
	std::span<const PageRun> runs(uint32_t l) const { return layers_[l].runs; }
	View page_table(uint32_t l) const; // (table_pages, 4) u32, KvRead::pages
	View live_bits(uint32_t l) const;  // (n_heads, table_pages, 4) u32, KvRead::live
	View factors(uint32_t l) const;    // (table_pages) u32, KvRead::factors; empty if no format has channel factors
	View balance(uint32_t l) const;    // (n_kv_heads, head_dim) f16 channel balancer; empty if the layer has none
	// First words of K and V of one kv head in one slot of an f16 page, and their chunk.
	struct F16Slot {
		uint32_t chunk, k, v;
	};
	F16Slot f16_slot(uint32_t head, uint32_t page_id, uint32_t index) const;

	// ---- attention received by the tokens in f16 slots since the last flush or prompt; ranked policies only
	View slot_sums(uint32_t l) const; // (n_kv_heads, sum_slots) f32
	View all_sums() const;            // f32, of all layers; empty if there are none
	void fit_sums();                  // room for every f16 slot; sums so far survive
	void clear_sums();
	// (layers, n_kv_heads, n_f16_slots) of layers [first, first + n); submits and waits.
	std::vector<float> read_sums(uint32_t first, uint32_t n);

 private:
	void fit_tables();
	void sync_pages(uint32_t l, Tier);
	void sync_live(uint32_t l, Tier);
	void write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now, size_t device_word);
	uint32_t tier_first(Tier) const; // row of the tables where a tier's pages begin
	size_t live_word() const { return layers_.size() * table_pages_ * 4; } // first word of the live bits
	size_t factor_word() const { return live_word() + live_.size(); }

	struct Layer {
		uint64_t version[kTiers] = {};
		std::vector<uint32_t> table;   // (table_pages, 4) what the device has
		std::vector<uint32_t> factors; // (table_pages) the same; empty without factors
		std::vector<PageRun> runs;     // in the order of tiers
	};

	Backend& be_;
	const KvPlan& plan_;
	KvPool& pool_;
	KvCache cache_;
	uint32_t max_tokens_;
	bool has_factors_ = false;         // some V format has channel factors
	uint32_t tier_pages_[kTiers] = {}; // rows of the table each tier may take
	uint32_t table_pages_ = 0;         // their sum
	Buffer tables_; // page tables (n_layers, table_pages, 4), live bits (n_groups, n_heads, table_pages, 4),
	                // factors (n_layers, table_pages)
	std::vector<Layer> layers_;
	std::vector<uint32_t> live_; // (n_groups, n_heads, table_pages, 4) what the device has
	Buffer sums_, balance_;
	uint32_t sum_slots_ = 0;
};

} // namespace kvrun
