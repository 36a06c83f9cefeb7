// A pool of pages that only counts.
#include "engine/kv_host/page_pool.h"
#include <algorithm>
#include <functional>

namespace kvrun {

uint32_t BudgetPool::alloc(uint32_t, uint32_t words, uint32_t table_bytes) {
	const size_t cost = size_t(words) * 4 + table_bytes;
	if (cost > budget_ - used_) return kNone;
	uint32_t id = uint32_t(pages_.size());
	if (free_.empty()) {
		pages_.emplace_back();
		free_.reserve(pages_.capacity()); // so that free() cannot throw
	} else {
		std::pop_heap(free_.begin(), free_.end(), std::greater<>());
		id = free_.back();
		free_.pop_back();
	}
	pages_[id] = {cost, 1};
	used_ += cost;
	++n_live_;
	return id;
}

void BudgetPool::free(uint32_t id) noexcept {
	if (id >= pages_.size() || pages_[id].owners == 0 || --pages_[id].owners) return;
	used_ -= pages_[id].cost;
	--n_live_;
	free_.push_back(id);
	std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

} // namespace kvrun
