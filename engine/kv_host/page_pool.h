// The source of a cache's pages: shared by all sequences, whatever their policies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvrun {

constexpr uint32_t kNone = UINT32_MAX; // no page, no block

// Ids are unique among the live pages of a pool, parameter blocks included. A page has one or more owners.
class PagePool {
 public:
	virtual ~PagePool() = default;
	// An id for `words` 32-bit words of layer `layer`, or kNone if the budget does not allow them. table_bytes: further
	// bytes for the page in page tables and live bits; they count against the budget.
	virtual uint32_t alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) = 0;
	virtual void share(uint32_t id) noexcept = 0; // adds an owner
	virtual void free(uint32_t id) noexcept = 0;  // removes an owner; without owners the page is freed
	virtual bool shared(uint32_t id) const = 0;   // whether there is more than one owner
	virtual size_t budget_bytes() const = 0;      // SIZE_MAX: limited by the device only
	virtual size_t used_bytes() const = 0;        // pages and blocks handed out, with their share of tables
	// About this many words of a layer will be allocated at once.
	virtual void reserve_hint(uint32_t /*layer*/, size_t /*words*/) {}
};

// A pool that only counts. The lowest free id is reused first; alloc() fails when the budget is spent.
class BudgetPool : public PagePool {
 public:
	explicit BudgetPool(size_t budget_bytes = SIZE_MAX) : budget_(budget_bytes) {}
	uint32_t alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) override;
	void share(uint32_t id) noexcept override { ++pages_[id].owners; }
	void free(uint32_t id) noexcept override;
	bool shared(uint32_t id) const override { return pages_[id].owners > 1; }
	size_t budget_bytes() const override { return budget_; }
	size_t used_bytes() const override { return used_; }
	uint32_t n_live() const { return n_live_; }

 private:
	struct Page {
		size_t cost;         // bytes, tables included
		uint32_t owners = 0; // 0: free
	};
	std::vector<Page> pages_;    // by id
	std::vector<uint32_t> free_; // min-heap of ids
	size_t budget_, used_ = 0;   // bytes
	uint32_t n_live_ = 0;        // pages and blocks
};

} // namespace kvrun
