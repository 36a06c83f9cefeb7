// Device memory of the cache: pages of all sequences and policies of an engine, by layer, within one budget in bytes;
// and the tables that say where they are.
#pragma once
#include "engine/kv_device/host_store.h"
#include "engine/kv_device/word_arena.h"
#include "engine/kv_host/page_pool.h"
#include <deque>

namespace kvrun {

class KvPool : public PagePool {
 public:
	struct Addr {
		uint32_t chunk; // which buffer
		uint32_t at;    // first word of the page in it
	};

	// budget_bytes: most device memory that pages and their tables may take; allocated from the backend as needed.
	// parts: of Backend::alloc_part(), by layer; empty: all are 0.
	KvPool(Backend&, uint32_t n_layers, size_t budget_bytes, std::vector<uint32_t> parts = {});

	uint32_t alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) override;
	void share(uint32_t id) noexcept override { ++pages_[id].owners; }
	void free(uint32_t id) noexcept override;
	bool shared(uint32_t id) const override { return pages_[id].owners > 1; }
	size_t budget_bytes() const override { return budget_; }
	size_t used_bytes() const override { return used_; }
	void reserve_hint(uint32_t layer, size_t words) override;
	// Frees device memory that holds no page.
	void trim();

	Addr addr(uint32_t id) const { return {pages_[id].chunk, pages_[id].at}; }
	View chunk(uint32_t c) const { return chunks_[c].memory.view(); } // (words) u32, all of it
	// Page tables and live bits; written by the host.
	WordArena& tables() { return tables_; }
	const WordArena& tables() const { return tables_; }
	// Attention received by tokens in f16 slots (f32), and channel balancers (f16); both written by kernels.
	WordArena& sums() { return sums_; }
	WordArena& balances() { return balances_; }
	const WordArena& sums() const { return sums_; }
	const WordArena& balances() const { return balances_; }
	HostPool& host() { return host_; }                   // for policies that fetch
	size_t allocated_bytes() const;                      // taken from the device, tables included
	const DeviceInfo& device() const { return device_; } // as it was when the pool was created
	uint32_t part(uint32_t layer) const { return layers_[layer].part; }

 private:
	struct Page {
		uint32_t chunk, at, words;
		uint32_t cost;   // bytes, tables included
		uint32_t owners; // 0: free
	};
	struct Chunk {
		WordArena memory;
		uint32_t layer;
	};
	uint64_t find_room(uint32_t layer, uint32_t words, uint32_t& chunk); // grows where there is none
	void add_room(uint32_t layer, uint32_t words);

	Backend& be_;
	DeviceInfo device_;
	size_t budget_, used_ = 0;
	uint64_t most_words_; // of a chunk
	// A layer's pages lie in one buffer as long as one binding can hold it, so that one dispatch reaches the pages of
	// all sequences. Chunk objects never move (deque).
	std::deque<Chunk> chunks_;
	struct Layer {
		std::vector<uint32_t> chunks; // in the order in which they were added
		uint64_t expected = 0;        // words in use once all announced pages are taken
		uint64_t used = 0;            // words in pages
		uint32_t part = 0;
	};
	std::vector<Layer> layers_;
	std::vector<Page> pages_; // by id
	std::vector<uint32_t> free_ids_;
	WordArena tables_, sums_, balances_;
	HostPool host_;
};

} // namespace kvrun
