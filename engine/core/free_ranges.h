// First-fit allocator of ranges in one block of memory, in any unit; freed neighbours merge.
#pragma once
#include "engine/core/round.h"
#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvrun {

class FreeRanges {
 public:
	explicit FreeRanges(uint64_t size) : size_(size) {
		if (size) free_.push_back({0, size});
	}
	static constexpr uint64_t kNowhere = UINT64_MAX;

	// Start of a range aligned to `align` (a power of two), or kNowhere. May allocate memory, so that give() need not.
	uint64_t take(uint64_t n, uint64_t align) {
		make_room(n_taken_ + 3); // one more range will be taken, and free ranges exceed taken ones by one at most
		for (size_t i = 0; i < free_.size(); ++i) {
			const auto [start, length] = free_[i];
			const uint64_t at = align_up(start, align);
			if (at - start > length || length - (at - start) < n) continue;
			const Range rest{at + n, start + length - (at + n)};
			const auto here = free_.begin() + std::ptrdiff_t(i);
			if (at > start) {
				here->length = at - start;
				if (rest.length) free_.insert(here + 1, rest);
			} else if (rest.length) {
				*here = rest;
			} else {
				free_.erase(here);
			}
			taken_ += n, ++n_taken_;
			return at;
		}
		return kNowhere;
	}
	void give(uint64_t at, uint64_t n) noexcept { // frees a range returned by take()
		taken_ -= n, --n_taken_;
		insert(at, n);
	}
	void grow(uint64_t size) { // never shrinks; the new part is free
		if (size <= size_) return;
		make_room(free_.size() + 1);
		insert(size_, size - size_);
		size_ = size;
	}
	bool empty() const { return taken_ == 0; }
	uint64_t size() const { return size_; }
	uint64_t taken() const { return taken_; }

 private:
	struct Range {
		uint64_t start, length;
	};
	void make_room(size_t ranges) {
		if (free_.capacity() < ranges) free_.reserve(2 * ranges);
	}
	void insert(uint64_t at, uint64_t n) {
		auto next =
		    std::lower_bound(free_.begin(), free_.end(), at, [](const Range& r, uint64_t a) { return r.start < a; });
		const bool joins_next = next != free_.end() && at + n == next->start;
		const bool joins_before = next != free_.begin() && (next - 1)->start + (next - 1)->length == at;
		if (joins_before && joins_next) {
			(next - 1)->length += n + next->length;
			free_.erase(next);
		} else if (joins_before) {
			(next - 1)->length += n;
		} else if (joins_next) {
			*next = {at, n + next->length};
		} else {
			free_.insert(next, {at, n});
		}
	}
	uint64_t size_, taken_ = 0; // taken_: units
	size_t n_taken_ = 0;        // ranges
	std::vector<Range> free_;   // by start
};

} // namespace kvrun
