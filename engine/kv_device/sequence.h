// One sequence on a device: its cache, and where its tables, sums and balancers lie in the pool's memory.
#pragma once
#include "engine/kv_device/pool.h"
#include "engine/kv_host/cache.h"
#include <array>
#include <functional>
#include <memory>

namespace kvrun {

// The chunks a page's parts lie in: K codes, V codes, K params, V params, V channel factors.
using PageChunks = std::array<uint32_t, 5>;

// A stretch of logical pages of one tier whose parts lie in the same pool chunks.
struct PageRun {
	Tier tier;
	PageChunks chunk;
	uint32_t first, n; // pages, numbered over all tiers of the layer: rows of the page table
};

class KvFetch;
struct RowMask;

class KvSequence {
 public:
	// Plan and pool must outlive the sequence. max_tokens: expected length; may be exceeded. seed: for the policy's
	// random choices.
	KvSequence(Backend&, const KvPlan&, KvPool&, uint32_t max_tokens, uint64_t seed = 1);
	~KvSequence();
	KvSequence(const KvSequence&) = delete;
	// Returns a new sequence with the same tokens: pages are shared, f16 pages until either sequence writes to them.
	// Throws Error{OutOfMemory}.
	std::unique_ptr<KvSequence> fork();

	// ---- saving to a file
	// Passes all device data to `sink` in pieces of a few MiB: pages, then sums, then balancers. Submits and waits.
	void save_device(const std::function<void(std::span<const std::byte>)>& sink);
	size_t saved_device_bytes() const; // total of all pieces
	// A sequence of the same plan from its books and those pieces; `source` fills the span it is given. Throws
	// Error{Format, OutOfMemory} as KvCache::load_books() does.
	static std::unique_ptr<KvSequence> restore(Backend&, const KvPlan&, KvPool&, uint64_t seed,
	                                           std::span<const std::byte> books, uint32_t n_tokens,
	                                           const std::function<void(std::span<std::byte>)>& source);

	uint32_t n_tokens() const { return cache_.n_tokens(); }
	KvBytes bytes() const { return cache_.bytes(); }
	size_t table_bytes() const; // allocated in addition to pages
	KvCache& cache() { return cache_; }
	const KvCache& cache() const { return cache_; }
	const KvPlan& plan() const { return plan_; }
	KvPool& pool() { return pool_; }
	const KvPool& pool() const { return pool_; }
	KvFetch* fetch() const { return fetch_.get(); } // null if the policy does not fetch
	void reset();
	uint32_t exact_position(uint32_t n) const; // KvCache::exact_position() at which the fetched set is also the same
	void truncate(uint32_t n_tokens);          // to an exact position

	// Enqueues what KvCache::copies() lists, once.
	void copy_pages();
	// Makes page table and live bits on the device equal to the cache's, writing what changed. Throws
	// Error{OutOfMemory} with the cache unchanged.
	void sync();
	std::span<const PageRun> runs(uint32_t l) const { return layers_[l].runs; }
	uint32_t tier_first(Tier) const; // first row of a tier's pages in the tables
	// Words of pool().tables(): a page's entry (AttendWork::pages), its live bits in kv head 0, its factors entry.
	// `row`: of the page table of layer l, as PageRun counts.
	uint32_t page_word(uint32_t l, uint32_t row) const { return table_at_ + (l * table_pages_ + row) * 4; }
	uint32_t live_word(uint32_t l, uint32_t row) const;
	// Of token set `head`: positions of tokens in row's page, LIVE_POSITIONS words; LIVE_IN_ORDER if slots are in
	// order.
	uint32_t position_word(uint32_t l, uint32_t head, uint32_t row) const;
	uint32_t table_pages() const { return table_pages_; }                              // rows of the page table
	uint32_t live_stride() const { return plan_.n_heads == 1 ? 0 : table_pages_ * 4; } // words between kv heads
	uint32_t factor_word(uint32_t l, uint32_t row) const { return factors_at() + l * table_pages_ + row; }

	// First word of layer l's channel balancer in pool().balances(), and the balancer; only if the layer has
	// one.
	uint32_t balance_word(uint32_t l) const { return balance_at_ + l * uint32_t(plan_.balancer_bytes() / 4); }
	void begin_balance(uint32_t n); // before the first tokens: n of a prompt that computes them; 0: they are all 1
	View balance(uint32_t l) const; // (n_kv_heads, head_dim) f16; empty if the layer has none

	// Chunk and first words of K and V of one kv head in one slot of an f16 page.
	struct F16Slot {
		uint32_t chunk, k, v;
	};
	F16Slot f16_slot(uint32_t layer, uint32_t head, uint32_t page_id, uint32_t index) const;

	// ---- attention received by the tokens in f16 slots since the last flush or prompt; ranked policies only
	uint32_t sums_word(uint32_t l) const {
		return sums_at_ + l * plan_.shape.n_kv_heads * sum_slots_;
	}                                                   // of pool().sums()
	uint32_t sums_stride() const { return sum_slots_; } // words between kv heads
	View all_sums() const;                              // f32, of all layers; empty if there are none
	void fit_sums();                                    // makes room for every f16 slot; keeps existing sums
	void clear_sums();
	// Enqueues a read of layers [first, first + n) into `raw`; after the next wait(), sums_of(raw) is
	// (n, n_kv_heads, n_f16_slots).
	void read_sums(uint32_t first, uint32_t n, std::vector<float>& raw);
	std::vector<float> sums_of(std::span<const float> raw) const;

 private:
	struct Layer {
		uint64_t version[kTiers] = {};
		uint32_t n_pages[kTiers] = {}; // rows of `table` that match the cache, while pages_version_ is current
		std::vector<uint32_t> table;   // (table_pages, 4) copy of the device's words
		std::vector<uint32_t> factors; // (table_pages) likewise; empty without factors
		std::vector<PageRun> runs;     // in the order of tiers
	};
	struct Stored { // bytes of a buffer
		const Buffer* buffer;
		size_t at, bytes;
	};
	std::vector<Stored> stored(); // buffers that save_device() saves, in its order
	void fit_tables();
	void sync_pages(uint32_t l, Tier, uint32_t from);
	void sync_live(uint32_t l, Tier);
	void sync_positions(uint32_t l, Tier);
	void write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now, size_t device_word);
	uint32_t n_live_words() const { return plan_.n_groups * plan_.n_heads * table_pages_ * 4; }
	uint32_t live_at() const { return table_at_ + uint32_t(layers_.size()) * table_pages_ * 4; }
	uint32_t factors_at() const { return live_at() + n_live_words(); }
	uint32_t n_factor_words() const { return has_factors_ ? uint32_t(layers_.size()) * table_pages_ : 0; }
	uint32_t positions_at() const { return align_up(factors_at() + n_factor_words(), 4u); }
	uint32_t n_position_words() const { return plan_.has_positions() ? n_live_words() / 4 * LIVE_POSITIONS : 0; }
	uint32_t table_words() const { return positions_at() + n_position_words() - table_at_; } // of the whole range
	uint32_t sums_words() const { return uint32_t(layers_.size()) * plan_.shape.n_kv_heads * sum_slots_; }
	uint32_t balance_words() const { return uint32_t(layers_.size() * plan_.balancer_bytes() / 4); }
	void give_tables();
	void give_sums();

	Backend& be_;
	const KvPlan& plan_;
	KvPool& pool_;
	KvCache cache_;
	std::unique_ptr<KvFetch> fetch_;
	bool has_factors_ = false;         // some V format has channel factors
	bool balanced_ = false;            // some layer has a channel balancer
	uint32_t tier_pages_[kTiers] = {}; // rows of the table reserved for each tier
	uint32_t table_pages_ = 0;         // their sum; 0: no tables yet
	// Page tables (n_layers, table_pages, 4), live bits (n_groups, n_heads, table_pages, 4), factors (n_layers,
	// table_pages), positions (n_groups, n_heads, table_pages, LIVE_POSITIONS): words of pool_.tables() from here on.
	uint32_t table_at_ = 0;
	uint64_t pages_version_ = UINT64_MAX; // version of the cache when the tables were written
	std::vector<Layer> layers_;
	std::vector<uint32_t> positions_;      // (n_groups, n_heads, table_pages, LIVE_POSITIONS) likewise; or empty
	std::vector<uint32_t> live_;           // (n_groups, n_heads, table_pages, 4) copy of the device's words
	uint32_t sums_at_ = 0, sum_slots_ = 0; // (n_layers, n_kv_heads, sum_slots) words of pool_.sums(); 0 slots: none yet
	uint32_t balance_exact_from_ = 0;      // tokens that made the balancers: the first prompt's
	uint32_t balance_at_ = kNone;          // (n_layers, n_kv_heads, head_dim) f16 in pool_.balances()
};

// Pages per piece of attention in layer l. They depend only on the length of what is read and on the device, so that a
// sequence always merges the same parts. The mask is that of a row that does not see all tokens; null: sees all.
uint32_t decode_piece(const DeviceInfo&, const KvSequence&, uint32_t l, const RowMask* = nullptr);
uint32_t decode_piece(const DeviceInfo&, uint32_t n_kv_heads, uint32_t n_pages, uint32_t page); // of equal pages
uint32_t prompt_piece(const DeviceInfo&, const KvSequence&, uint32_t l); // for a prompt's rows over older tokens

} // namespace kvrun
