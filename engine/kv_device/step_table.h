// Uint32 arrays of one step, collected on the host and written to the device in one write.
#pragma once
#include "backends/backend.h"
#include "engine/core/round.h"
#include <algorithm>

namespace kvrun {

class StepTable {
 public:
	// Reserves n words, 256-byte aligned; returns their offset in words. Fill them through at().
	size_t take(size_t n) {
		const size_t at = align_up(words_.size(), 64);
		words_.resize(at + n);
		return at;
	}
	std::span<uint32_t> at(size_t offset, size_t n) { return std::span(words_).subspan(offset, n); }
	size_t put(std::span<const uint32_t> words) { // take() and fill
		const size_t at = take(words.size());
		std::ranges::copy(words, words_.begin() + ptrdiff_t(at));
		return at;
	}
	// Writes all words; grows the buffer when they do not fit.
	void upload(Backend& be, Buffer& b) const {
		const size_t bytes = std::max<size_t>(words_.size() * 4, 4);
		if (b.bytes() < bytes) b = be.alloc(std::max(bytes + bytes / 2, size_t(16384)), Mem::Device, "step tables");
		if (!words_.empty()) be.write(b, 0, std::as_bytes(std::span(words_)));
	}
	void clear() { words_.clear(); }

 private:
	std::vector<uint32_t> words_;
};

// Words [at, at + d0 * d1 * d2) of an uploaded table.
inline View table_view(const Buffer& b, size_t at, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
	return view(b, at * 4, DType::U32, d0, d1, d2);
}

} // namespace kvrun
