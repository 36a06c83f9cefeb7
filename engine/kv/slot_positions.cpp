// Which token is in each slot of a packed tier, about a byte per slot: most follow the slot before by a little.
#include "engine/kv/slot_positions.h"
#include "engine/core/error.h"
#include <algorithm>

namespace kvrun {
namespace {

// A byte per slot: how far its token is behind that of the slot before; or what follows it.
constexpr uint8_t kEmpty = 0, kAnywhere = 255; // 255: the position, as four bytes

// As vectors grow, but by less.
template <class T> void make_room(std::vector<T>& v, size_t more) {
	if (v.capacity() < v.size() + more) v.reserve(v.size() + more + v.size() / 8);
}

} // namespace

void SlotPositions::clear() { starts_ = {}, bytes_ = {}, open_ = {}; }

void SlotPositions::append_page() { open_.resize(open_.size() + page_, kNone); }

void SlotPositions::set(uint32_t slot, uint32_t pos) {
	KV_ASSERT(slot >= n_sealed() * page_ && slot < n_slots());
	open_[slot - n_sealed() * page_] = pos;
}

void SlotPositions::seal(uint32_t n_pages) {
	if (n_pages <= n_sealed()) return;
	const uint32_t n = (n_pages - n_sealed()) * page_;
	KV_ASSERT(n <= open_.size());
	make_room(starts_, n / page_);
	make_room(bytes_, n + n / page_ * 4);
	uint32_t before = kNone;
	for (uint32_t i = 0; i < n; ++i) {
		if (i % page_ == 0) starts_.push_back(uint32_t(bytes_.size())), before = kNone;
		const uint32_t pos = open_[i];
		if (pos == kNone) {
			bytes_.push_back(kEmpty);
		} else if (before != kNone && pos > before && pos - before < kAnywhere) {
			bytes_.push_back(uint8_t(pos - before));
		} else {
			bytes_.push_back(kAnywhere);
			for (int b = 0; b < 4; ++b) bytes_.push_back(uint8_t(pos >> 8 * b));
		}
		if (pos != kNone) before = pos;
	}
	open_.erase(open_.begin(), open_.begin() + n);
	if (open_.capacity() > open_.size() + 4 * page_) open_.shrink_to_fit();
}

void SlotPositions::unpack(uint32_t page, std::span<uint32_t> to) const {
	const uint8_t* b = &bytes_[starts_[page]];
	uint32_t before = kNone;
	for (uint32_t& pos : to) {
		const uint8_t code = *b++;
		if (code == kAnywhere) {
			before = 0;
			for (int i = 0; i < 4; ++i) before |= uint32_t(*b++) << 8 * i;
		} else if (code != kEmpty) {
			before += code;
		}
		pos = code == kEmpty ? kNone : before;
	}
}

void SlotPositions::cut(uint32_t n_pages, uint32_t first_empty) {
	const uint32_t keep = std::min(n_pages, first_empty / page_); // pages that stay as they are
	std::vector<uint32_t> open;
	for (uint32_t p = keep; p < std::min(n_pages, n_sealed()); ++p) {
		open.resize(open.size() + page_);
		unpack(p, std::span(open).last(page_));
	}
	if (keep < n_sealed()) {
		if (n_pages > n_sealed())
			open.insert(open.end(), open_.begin(), open_.begin() + (n_pages - n_sealed()) * page_);
		bytes_.resize(starts_[keep]);
		starts_.resize(keep);
		open_ = std::move(open);
	} else {
		open_.resize((n_pages - n_sealed()) * page_);
	}
	for (uint32_t slot = first_empty; slot < n_slots(); ++slot) open_[slot - n_sealed() * page_] = kNone;
}

uint32_t SlotPositions::at(uint32_t slot) const {
	const uint32_t page = slot / page_, in_page = slot % page_;
	KV_ASSERT(slot < n_slots());
	if (page >= n_sealed()) return open_[slot - n_sealed() * page_];
	uint32_t pos[128];
	KV_ASSERT(page_ <= 128);
	unpack(page, {pos, in_page + 1});
	return pos[in_page];
}

std::vector<uint32_t> SlotPositions::all() const {
	std::vector<uint32_t> out(n_slots());
	for (uint32_t p = 0; p < n_sealed(); ++p) unpack(p, std::span(out).subspan(size_t(p) * page_, page_));
	std::copy(open_.begin(), open_.end(), out.begin() + std::ptrdiff_t(n_sealed()) * page_);
	return out;
}

} // namespace kvrun
