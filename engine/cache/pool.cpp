// Device memory of KV pages: chunks cut into pages, within a budget in bytes.
#include "engine/cache/pool.h"
#include <algorithm>
#include <functional>

namespace kvrun {

// Chunks of up to 64 MiB keep every page of a chunk inside one binding on any device; small budgets get small chunks,
// so that a short chat does not take memory it never uses.
KvPool::KvPool(Backend& be, const KvPlan& plan, size_t budget_bytes) : be_(be), plan_(plan), budget_(budget_bytes) {
	const DeviceInfo dev = be.info();
	const size_t most = std::min({size_t(64) << 20, dev.max_view_bytes, dev.max_buffer_bytes}) & ~size_t(255);
	chunk_bytes_ = std::clamp<size_t>(budget_ / 16, std::min<size_t>(most, 1 << 20), most) & ~size_t(255);
}

size_t KvPool::cost(uint16_t format) const {
	const PageFormat& f = plan_.formats[format];
	return f.bytes() + (f.page ? plan_.table_bytes() : 0);
}

void KvPool::grow(uint32_t words) {
	const size_t need = (size_t(words) * 4 + 255) & ~size_t(255);
	// A prompt in an empty pool gets what it needs; from then on the pool grows by a quarter. New memory is cleared, so
	// all of it is resident where the device is the host.
	const size_t left = expected_ > allocated_ ? expected_ - allocated_ : 0;
	// Pieces of attention end where chunks do: what fits a first chunk of this size has the same bits in any company.
	const size_t least = std::min<size_t>(8 << 20, chunk_bytes_);
	const size_t want = left && !chunks_.empty() ? left : std::max(left ? left : allocated_ / 4, least);
	const size_t size = std::min(want + 255, chunk_bytes_) & ~size_t(255);
	chunks_.push_back(be_.alloc(std::max(size, need), Mem::Device, "kv pages"));
	allocated_ += chunks_.back().bytes();
	tail_ = 0;
}

void KvPool::expect(size_t bytes) {
	if (used_ == 0) expected_ = std::min(bytes + bytes / 64, budget_); // ends of chunks stay empty
}

uint32_t KvPool::alloc(uint16_t format, uint32_t) {
	const uint32_t words = plan_.formats[format].words;
	KV_ASSERT(words > 0);
	if (used_ + cost(format) > budget_) return kNone;
	uint32_t id = kNone;
	if (auto f = free_.find(words); f != free_.end() && !f->second.empty()) {
		std::pop_heap(f->second.begin(), f->second.end(), std::greater());
		id = f->second.back();
		f->second.pop_back();
		pages_[id].format = format;
	} else {
		if (chunks_.empty() || size_t(tail_) + words > chunks_.back().bytes() / 4) grow(words);
		id = uint32_t(pages_.size());
		pages_.push_back({uint32_t(chunks_.size() - 1), tail_, format});
		tail_ += words;
	}
	used_ += cost(format);
	return id;
}

void KvPool::free(uint32_t id) noexcept {
	used_ -= cost(pages_[id].format);
	std::vector<uint32_t>& heap = free_[plan_.formats[pages_[id].format].words];
	heap.push_back(id);
	std::push_heap(heap.begin(), heap.end(), std::greater());
}

View KvPool::chunk(uint32_t c) const { return view(chunks_[c], 0, DType::U32, uint32_t(chunks_[c].bytes() / 4)); }

} // namespace kvrun
