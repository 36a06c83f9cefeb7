// Device memory handed out in ranges of 32-bit words; it grows by copying, and ranges keep their places.
#pragma once
#include "backends/backend.h"
#include "engine/core/free_ranges.h"
#include "engine/kv_host/page_pool.h"

namespace kvrun {

class WordArena {
 public:
	// part: of Backend::alloc_part(); kNone: ops of all layers use the memory
	WordArena(Backend& be, const char* label, uint32_t part = kNone)
	    : be_(&be), label_(label), part_(part), ranges_(0) {}

	// Takes `words` words at a multiple of 4; returns the first. Throws Error{OutOfMemory} with nothing changed.
	uint32_t take(uint32_t words);
	// The same without growing; returns FreeRanges::kNowhere if there is no room.
	uint64_t take_within(uint32_t words) { return ranges_.take(words, kAlign); }
	void give(uint32_t at, uint32_t words) { ranges_.give(at, words); }
	// Grows the memory to `words` words, which must not be less than its size. Throws Error{OutOfMemory} with nothing
	// changed.
	void grow(uint64_t words);
	void release(); // frees the memory; every range must have been given back

	bool empty() const { return ranges_.empty(); }     // no range is taken
	uint64_t words() const { return ranges_.size(); }  // of the memory
	uint64_t taken() const { return ranges_.taken(); } // words in ranges
	size_t bytes() const { return buffer_.bytes(); }
	const Buffer& buffer() const { return buffer_; }
	View view() const { return buffer_ ? words_of(buffer_) : View{}; } // (words) u32
	View view(uint32_t at, uint32_t words) const { return kvrun::view(buffer_, size_t(at) * 4, DType::U32, words); }

 private:
	static constexpr uint64_t kAlign = 4; // words: kernels read 16 bytes at a time
	Backend* be_;
	const char* label_;
	uint32_t part_;
	Buffer buffer_;
	FreeRanges ranges_;
};

} // namespace kvrun
