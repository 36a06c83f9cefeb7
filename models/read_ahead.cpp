// Pieces of tensors in order, read by worker threads.
#include "models/read_ahead.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "models/finite.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr size_t kReadBytes = size_t(256) << 10; // per read: still in the core's cache when it is checked

} // namespace

ReadAhead::ReadAhead(const Gguf& g, std::vector<WeightPiece> pieces, unsigned threads, Arrange arrange)
    : gguf_(g), pieces_(std::move(pieces)), arrange_(std::move(arrange)),
      slots_(threads + 1) { // the caller's, and one per thread
	try {
		threads_.reserve(threads);
		for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
	} catch (const std::exception&) {} // no more threads can start; those that run must be joined
}

ReadAhead::~ReadAhead() {
	{
		const std::lock_guard lock(mutex_);
		stop_ = true;
	}
	changed_.notify_all();
	for (std::thread& t : threads_) t.join();
}

void ReadAhead::fill(Slot& slot, const WeightPiece& p) const {
	const auto [name, block, block_bytes] = dtype_info(p.tensor->type);
	const size_t step = kReadBytes / block_bytes * block_bytes;
	slot.bytes.resize(p.bytes);
	slot.not_finite.reset();
	for (size_t at = 0; at < p.bytes; at += step) {
		const auto part = std::span(slot.bytes).subspan(at, std::min(step, p.bytes - at));
		gguf_.read(*p.tensor, p.from + at, part);
		if (slot.not_finite) continue;
		if (const auto bad = first_not_finite(p.tensor->type, part))
			slot.not_finite = (p.from + at) / block_bytes * block + *bad;
	}
	if (!arrange_ || !arrange_(p, slot.bytes, slot.arranged)) slot.arranged.clear();
}

void ReadAhead::work() {
	std::unique_lock lock(mutex_);
	for (;;) {
		// The slot of the piece that next() returned last is still in use.
		changed_.wait(lock, [&] { return stop_ || taken_ == pieces_.size() || taken_ + 1 < given_ + slots_.size(); });
		if (stop_ || taken_ == pieces_.size()) return;
		const size_t i = taken_++;
		Slot& slot = slots_[i % slots_.size()];
		lock.unlock();
		std::exception_ptr error;
		try {
			fill(slot, pieces_[i]);
		} catch (...) { error = std::current_exception(); }
		lock.lock();
		slot.error = error;
		slot.ready = true;
		changed_.notify_all();
	}
}

ReadAhead::Read ReadAhead::next() {
	std::unique_lock lock(mutex_);
	const size_t i = given_++;
	KV_ASSERT(i < pieces_.size());
	Slot& slot = slots_[i % slots_.size()];
	if (threads_.empty()) {
		fill(slot, pieces_[i]);
	} else {
		changed_.notify_all();
		changed_.wait(lock, [&] { return slot.ready; });
		slot.ready = false;
		if (slot.error) std::rethrow_exception(slot.error);
	}
	return {pieces_[i], slot.bytes, slot.arranged, slot.not_finite};
}

} // namespace kvrun
