// Which token is in each slot of a packed tier, about a byte per slot: most follow the slot before by a little.
#pragma once
#include "engine/kv/page_pool.h"
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class SlotPositions {
 public:
	explicit SlotPositions(uint32_t page) : page_(page) {}

	void clear();
	uint32_t n_slots() const { return (n_sealed() + n_open()) * page_; }
	void append_page();                    // of empty slots
	void set(uint32_t slot, uint32_t pos); // of a page that is not sealed
	// Packs the pages before number n_pages; what is set later is behind them.
	void seal(uint32_t n_pages);
	// There are n_pages pages, and the slots from first_empty on are empty.
	void cut(uint32_t n_pages, uint32_t first_empty);
	uint32_t at(uint32_t slot) const;  // kNone: empty
	std::vector<uint32_t> all() const; // (n_slots)

 private:
	uint32_t n_sealed() const { return uint32_t(starts_.size()); }
	uint32_t n_open() const { return uint32_t(open_.size() / page_); }
	void unpack(uint32_t page, std::span<uint32_t> to) const; // the first slots of a sealed page
	uint32_t page_;
	std::vector<uint32_t> starts_; // of each sealed page, in bytes_
	std::vector<uint8_t> bytes_;
	std::vector<uint32_t> open_; // of the pages behind them, by slot
};

} // namespace kvrun
