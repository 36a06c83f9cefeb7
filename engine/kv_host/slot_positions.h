// Which token is in each slot of a packed tier. A page of consecutive tokens takes four bytes; other pages take about
// half a byte per slot, because most tokens follow shortly after the token of the slot before.
#pragma once
#include "engine/kv_host/page_pool.h"
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class SlotPositions {
 public:
	explicit SlotPositions(uint32_t page) : page_(page) {}

	void clear() noexcept;
	uint32_t n_slots() const { return n_sealed() * page_ + uint32_t(open_.size()); }
	void append_page();                    // with empty slots
	void set(uint32_t slot, uint32_t pos); // of a page that is not sealed
	void seal(uint32_t n_pages);           // packs the pages before page n_pages; their slots no longer change

	// The state that appending, setting and sealing change: restoring it needs no memory.
	struct Saved {
		size_t n_starts, n_bytes;
		std::vector<uint32_t> open;
	};
	Saved save() const { return {starts_.size(), bytes_.size(), open_}; }
	void restore(Saved&&) noexcept;

	uint32_t at(uint32_t slot) const;  // kNone: empty
	std::vector<uint32_t> all() const; // (n_slots)

 private:
	uint32_t n_sealed() const { return uint32_t(starts_.size()); }
	void unpack(uint32_t page, std::span<uint32_t> to) const; // into the first slots of a sealed page
	uint32_t page_;
	std::vector<uint32_t> starts_; // of each sealed page: start in bytes_; or kRun and the position of its first token
	std::vector<uint8_t> bytes_;
	std::vector<uint32_t> open_; // positions of the pages that are not sealed, by slot
};

} // namespace kvrun
