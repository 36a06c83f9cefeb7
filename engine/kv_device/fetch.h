// What one sequence fetches: its copy in host memory, the f16 pages of a step, the masks that stand in for live bits.
//
// A step reads the tokens of `set` from f16 pages, which were filled during the previous step; masks hide their packed
// entries. A speculative row of the step weighs all packed tokens again and so chooses the next set.
#pragma once
#include "engine/kv_device/host_store.h"
#include "engine/kv_device/move_plan.h"
#include "engine/kv_host/fetch.h"
#include <map>
#include <optional>

namespace kvrun {

struct FetchStats {
	uint64_t steps = 0, bytes = 0;   // decode steps; bytes copied from the host for them
	double share = 0;                // sum over steps: share of the kept row's attention that went to f16 tokens
	double hidden_s = 0, open_s = 0; // host time: while the device computed, and while the device waited
};

class KvFetch {
 public:
	KvFetch(Backend&, const KvPlan&, KvPool&);
	~KvFetch();
	KvFetch(const KvFetch&) = delete;
	void fork_from(const KvFetch&); // copies the state of another sequence with the same tokens

	HostCopy& host() { return host_; }
	const HostCopy& host() const { return host_; }
	// Reserves host memory for tokens that leave the f16 pages until the sequence has n_tokens.
	void reserve_host(const KvCache&, uint32_t n_tokens);
	void keep(uint32_t l, const KvRows&, std::span<const LeavingRow>); // enqueues copies to the host
	FetchStats& stats() { return stats_; }
	const FetchStats& stats() const { return stats_; }

	// ---- what the next step runs beside its token
	bool ready() const { return token_ != kNone; }
	uint32_t token() const { return token_; }
	void speculate(uint32_t token) { token_ = token, decoded_ = true; }
	void forget();             // the sequence changed; drops the set and the speculative token
	void truncate(uint32_t n); // the sequence has n tokens left
	void reset();              // the sequence is empty
	void prompt_read(uint32_t first, uint32_t n);
	// The nearest position at or before n that the cache can return to and at which nothing was fetched yet.
	uint32_t exact_position(const KvCache&, uint32_t n) const;

	// ---- a step
	// Reserves memory for the step. edits: receives mask changes, (word, value) pairs of pool().tables() for scatter().
	// clear: this step chooses its own set. Throws Error{OutOfMemory}.
	void prepare(const KvSequence&, bool clear, std::vector<uint32_t>& edits);
	// Places the tokens of the set that this step packs; their rows are among the leaving rows.
	void place_packed(const KvSequence&, uint32_t l, std::span<const LeavingRow>, StepTable&);
	void store_packed(uint32_t l, const KvRows& gathered, const Buffer& words);
	void enqueue(uint32_t l); // fetched rows of layer l -> its pages
	// Takes the picks (n_kv_heads, n_picks()) of layer l, and begins to fetch them.
	void choose(const KvSequence&, uint32_t l, std::span<const uint32_t> picks);
	void mask_layer(const KvSequence&, uint32_t l, std::vector<uint32_t>& edits); // after choose() in the same step
	void step_failed(bool running);                                               // in which prepare() was called

	const FetchSet& set() const { return set_; }
	const PackedSlots& packed() const { return packed_; }                        // of this step
	uint32_t n_picks() const { return n_picks_; }                                // per kv head, of this step
	uint32_t n_fetched() const { return n_fetched_; }                            // per kv head, that this step reads
	uint32_t n_weights() const { return packed_.n() + weighed_pages() * page_; } // per kv head
	uint32_t weighed_pages() const { return set_.empty() ? 0 : ceil_div(n_fetched_, page_); }

	// ---- location of fetched tokens: their pages
	struct Run { // pages whose parts lie in one chunk
		uint32_t chunk, first, n;
	};
	std::span<const Run> runs(uint32_t l) const { return layers_[l].runs; }
	uint32_t n_pages() const { return ceil_div(n_fetched_, page_); } // of a layer, that this step reads
	uint32_t page_word(uint32_t l, uint32_t page) const { return table_at_ + (l * n_pages_ + page) * 4; }
	uint32_t live_word(uint32_t page) const { return table_at_ + (uint32_t(layers_.size()) * n_pages_ + page) * 4; }
	// The slot of the speculative token; valid for one step.
	KvSequence::F16Slot speculative_slot(const KvSequence& s, uint32_t l, uint32_t head) const {
		return s.f16_slot(l, head, speculative_pages_[l], speculative_slots_[set_of(l, head)]);
	}
	uint32_t speculative_chunk(uint32_t l) const { return pool_.addr(speculative_pages_[l]).chunk; }
	uint32_t speculative_page_word(uint32_t l) const { return speculative_at_ + l * 4; }
	uint32_t speculative_live_word(uint32_t l) const {
		return speculative_at_ + (uint32_t(layers_.size()) + set_of(l, 0)) * 4;
	}
	uint32_t speculative_live_stride() const { return plan_.n_heads == 1 ? 0 : 4; } // words between kv heads
	uint32_t mask_word(uint32_t l, Tier t, uint32_t page) const { return mask_at(l, 0, t, page); }
	uint32_t mask_stride() const { return mask_pages() * 4; } // words between kv heads

 private:
	struct Layer {
		std::vector<uint32_t> ids; // of pages in the pool
		std::vector<Run> runs;
		std::vector<ChunkRows> places; // of fetched rows in the pages
		std::vector<ChunkRows> packed; // of rows that this step packs
		uint32_t n_sent = 0;           // number of leading tokens of the set that come from the host
		uint64_t transfer = 0;         // the latest transfer
		bool fetched = false;          // rows were sent but are not in pages yet
	};
	uint32_t mask_pages() const { return mask_pages_[1] + mask_pages_[2]; }
	uint32_t mask_at(uint32_t l, uint32_t head, Tier t, uint32_t page) const {
		return mask_at_ +
		       ((l * plan_.shape.n_kv_heads + head) * mask_pages() + (t == Tier::Regular ? mask_pages_[1] : 0) + page) *
		           4;
	}
	uint32_t table_words() const { return (uint32_t(layers_.size()) + 1) * n_pages_ * 4; }
	uint32_t speculative_words() const { return (uint32_t(layers_.size()) + plan_.n_groups * plan_.n_heads) * 4; }
	uint32_t set_of(uint32_t l, uint32_t head) const { // index of the token set that says which slots are free
		return (plan_.n_groups == 1 ? 0 : l) * plan_.n_heads + (plan_.n_heads == 1 ? 0 : head);
	}
	uint32_t mask_words() const { return uint32_t(layers_.size()) * plan_.shape.n_kv_heads * mask_pages() * 4; }
	void add_packed(const KvCache&);
	uint32_t take_page(uint32_t l); // of f16 tokens
	uint32_t own_page(uint32_t l);  // for the speculative token
	void place_speculative(const KvCache&);
	// Finds a logical page of the window that is unshared in all n layers and has a free slot in each kv head. Returns
	// the page and writes these slots; returns kNone if there is no such page.
	uint32_t find_free(const KvCache&, uint32_t first, uint32_t n_layers, std::span<uint32_t> slots) const;
	void fit_pages();
	void fit_masks(const KvCache&);
	void fit_rows();
	void place_rows(const KvSequence&);
	void write_live();
	void write_masks(const KvCache&);
	void edit_masks(const KvCache&, std::vector<uint32_t>& edits);
	void edit_head(const KvCache&, uint32_t l, uint32_t h, std::span<const PackedSlot> before,
	               std::span<const std::pair<Tier, uint32_t>> changed, std::vector<uint32_t>& edits) const;
	void gather(const KvSequence&, uint32_t l, uint32_t n);
	void send(uint32_t l);
	KvRows rows_of(const Buffer&, uint32_t l) const; // (n_kv_heads, rows_, channels)
	size_t key_bytes() const { return size_t(2) * plan_.shape.n_kv_heads * rows_ * plan_.shape.head_dim; } // of a layer
	size_t layer_bytes() const {
		return key_bytes() + size_t(2) * plan_.shape.n_kv_heads * rows_ * plan_.shape.v_dim();
	}
	void give_tables();
	void give_masks();

	Backend& be_;
	const KvPlan& plan_;
	KvPool& pool_;
	uint32_t page_; // tokens of an f16 page
	HostCopy host_;
	FetchStats stats_;
	uint32_t token_ = kNone; // speculative
	bool decoded_ = false;   // since the last prompt
	uint32_t prompt_first_ = 0, prompt_end_ = 0;
	FetchSet set_;
	PackedSlots packed_{};
	uint32_t n_picks_ = 0, n_fetched_ = 0;
	std::vector<Layer> layers_;
	uint32_t n_pages_ = 0, table_at_ = 0, n_live_ = kNone; // pages of a layer; first word; tokens set in live bits
	// The speculative token lies in a free slot of the window's pages; if no slot is free, in a page of its own, which
	// the layers of a part use in turn. Entries (n_layers, 4) and live bits (n_groups, n_heads, 4): words of tables().
	std::vector<uint32_t> speculative_pages_; // by layer
	std::vector<uint32_t> speculative_slots_; // (n_groups, n_heads) slot in the page
	std::vector<uint32_t> speculative_table_; // copy of the words on the device
	uint32_t speculative_at_ = kNone;
	std::map<uint32_t, uint32_t> own_pages_; // by part
	// Masks (n_layers, n_kv_heads, mask_pages(), 4), the slots they hide, and the live bits they were computed from.
	uint32_t mask_pages_[kTiers] = {}, mask_at_ = 0;
	bool masks_valid_ = false;
	FetchSet masked_;
	struct Base {
		bool known = false;
		std::vector<uint32_t> live[kTiers]; // (n_groups, n_heads, pages, 4)
		uint64_t version[kTiers] = {};
		uint32_t pages[kTiers] = {};
	};
	Base base_;
	std::optional<Base> base_before_; // this step
	uint32_t chosen_ = 0;             // tokens of the set before this step added the tokens it packs
	uint32_t rows_ = 0;               // capacity of the buffers in rows, per layer and kv head
	Buffer sent_, arrived_,
	    words_; // by layer keys, then values (n_kv_heads, rows, channels) f16, on the host and on the device; places_
	std::vector<std::byte> plain_; // instead of sent_, where memory cannot be pinned
	bool stale_ = false;           // the set came from a fork: no rows have been sent yet
};

} // namespace kvrun
