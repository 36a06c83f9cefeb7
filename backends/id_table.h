// Entries by id, from 1 on; ids of removed entries are used again. Addresses of entries are stable.
#pragma once
#include "engine/core/error.h"
#include <cstdint>
#include <deque>
#include <vector>

namespace kvrun {

template <class T> class IdTable {
 public:
	// So that the next add() throws nothing.
	void reserve() {
		if (!free_.empty()) return;
		free_.reserve(entries_.size() + 1); // so that remove() cannot throw
		entries_.emplace_back();
		free_.push_back(uint32_t(entries_.size()));
	}
	uint32_t add(T entry) {
		reserve();
		const uint32_t id = free_.back();
		free_.pop_back();
		entries_[id - 1] = std::move(entry);
		return id;
	}
	void remove(uint32_t id) noexcept {
		entries_[id - 1] = T();
		free_.push_back(id);
	}
	T& operator[](uint32_t id) {
		KV_ASSERT(id >= 1 && id <= entries_.size());
		return entries_[id - 1];
	}
	const T& operator[](uint32_t id) const {
		KV_ASSERT(id >= 1 && id <= entries_.size());
		return entries_[id - 1];
	}
	auto begin() const { return entries_.begin(); } // removed ones are T()
	auto end() const { return entries_.end(); }

 private:
	std::deque<T> entries_;
	std::vector<uint32_t> free_; // ids
};

} // namespace kvrun
