// First-fit ranges of one block of memory; neighbours merge when they are given back. Any unit.
#pragma once
#include "engine/core/round.h"
#include <cstdint>
#include <iterator>
#include <map>

namespace kvrun {

class FreeRanges {
 public:
	explicit FreeRanges(uint64_t size) : size_(size) {
		if (size) free_[0] = size;
	}
	static constexpr uint64_t kNowhere = UINT64_MAX;

	// Start of a range aligned to `align` (a power of two), or kNowhere.
	uint64_t take(uint64_t n, uint64_t align) {
		for (auto it = free_.begin(); it != free_.end(); ++it) {
			const auto [start, length] = *it;
			const uint64_t at = align_up(start, align);
			if (at - start > length || length - (at - start) < n) continue;
			free_.erase(it);
			if (at > start) free_[start] = at - start;
			if (at + n < start + length) free_[at + n] = start + length - (at + n);
			taken_ += n;
			return at;
		}
		return kNowhere;
	}
	void give(uint64_t at, uint64_t n) {
		taken_ -= n;
		insert(at, n);
	}
	void grow(uint64_t size) { // to at least what it is; the new part is free
		if (size > size_) insert(size_, size - size_);
		size_ = size > size_ ? size : size_;
	}
	bool empty() const { return taken_ == 0; }
	uint64_t size() const { return size_; }
	uint64_t taken() const { return taken_; }

 private:
	void insert(uint64_t at, uint64_t n) {
		auto next = free_.lower_bound(at);
		if (next != free_.end() && at + n == next->first) {
			n += next->second;
			next = free_.erase(next);
		}
		if (next != free_.begin()) {
			auto before = std::prev(next);
			if (before->first + before->second == at) {
				before->second += n;
				return;
			}
		}
		free_[at] = n;
	}
	uint64_t size_, taken_ = 0;
	std::map<uint64_t, uint64_t> free_; // start -> length
};

} // namespace kvrun
