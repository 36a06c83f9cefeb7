// Device memory of KV pages: chunks cut into pages, within a budget in bytes. Shared by all sequences of an engine.
#pragma once
#include "backends/backend.h"
#include "engine/kv/cache.h"
#include <map>
#include <vector>

namespace kvrun {

class KvPool : public PagePool {
 public:
	struct Addr {
		uint32_t chunk;  // which Buffer
		uint32_t at;     // first word of the page in it
		uint16_t format; // index into KvPlan::formats
	};

	// budget_bytes: most device memory pages and their tables may take; chunks are taken from the backend as needed.
	KvPool(Backend&, const KvPlan&, size_t budget_bytes);

	uint32_t alloc(uint16_t format, uint32_t layer) override;
	void free(uint32_t id) noexcept override;
	size_t budget_bytes() const override { return budget_; }
	size_t used_bytes() const override { return used_; }
	void expect(size_t bytes) override;

	const Addr& addr(uint32_t id) const { return pages_[id]; }
	const KvPlan& plan() const { return plan_; }
	View chunk(uint32_t c) const;                         // (words) u32, all of it
	size_t allocated_bytes() const { return allocated_; } // chunks taken from the device

 private:
	void grow(uint32_t words);
	size_t cost(uint16_t format) const; // bytes of a page, its share of tables included

	Backend& be_;
	const KvPlan& plan_;
	size_t budget_, chunk_bytes_;
	size_t allocated_ = 0, used_ = 0;
	size_t expected_ = 0; // what the first sequence will have allocated
	std::vector<Buffer> chunks_;
	uint32_t tail_ = 0;       // words used of the last chunk
	std::vector<Addr> pages_; // by id
	// Size in words -> ids of pages given back, a heap with the least in front: pages are used again in the order of
	// their addresses, so that a sequence's pages stay neighbours in few chunks.
	std::map<uint32_t, std::vector<uint32_t>> free_;
};

} // namespace kvrun
