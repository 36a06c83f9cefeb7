// Which token is in each slot of a packed tier.
#include "engine/kv_host/slot_positions.h"
#include "engine/core/error.h"
#include "engine/core/make_room.h"
#include <algorithm>

namespace kvrun {
namespace {

// Four bits per slot: the distance of its token from that of the slot before; or one of these values.
constexpr uint32_t kEmpty = 0, kAnywhere = 15; // 15: the position follows, in eight times four bits
constexpr uint32_t kRun = 1u << 31;            // a page of consecutive tokens; the lower bits are the first position

class NibbleWriter { // appends, starting at a whole byte
 public:
	explicit NibbleWriter(std::vector<uint8_t>& to) : to_(to) {}
	void put(uint32_t n) {
		if (half_)
			to_.back() |= uint8_t(n << 4);
		else
			to_.push_back(uint8_t(n));
		half_ = !half_;
	}

 private:
	std::vector<uint8_t>& to_;
	bool half_ = false;
};

class NibbleReader {
 public:
	explicit NibbleReader(const uint8_t* from) : from_(from) {}
	uint32_t get() {
		half_ = !half_;
		return half_ ? *from_ & 15u : *from_++ >> 4;
	}

 private:
	const uint8_t* from_;
	bool half_ = false;
};

bool is_run(std::span<const uint32_t> pos) {
	for (size_t i = 1; i < pos.size(); ++i)
		if (pos[i] != pos[0] + i) return false;
	return pos[0] < kRun && pos.back() < kRun;
}

} // namespace

void SlotPositions::clear() noexcept { starts_.clear(), bytes_.clear(), open_.clear(); }

void SlotPositions::append_page() { open_.resize(open_.size() + page_, kNone); }

void SlotPositions::set(uint32_t slot, uint32_t pos) {
	KV_ASSERT(slot >= n_sealed() * page_ && slot < n_slots());
	open_[slot - n_sealed() * page_] = pos;
}

void SlotPositions::seal(uint32_t n_pages) {
	if (n_pages <= n_sealed()) return;
	const uint32_t n = n_pages - n_sealed();
	KV_ASSERT(size_t(n) * page_ <= open_.size());
	make_room(starts_, n);
	for (uint32_t p = 0; p < n; ++p) {
		const std::span<const uint32_t> slots = std::span(open_).subspan(size_t(p) * page_, page_);
		if (is_run(slots)) {
			starts_.push_back(kRun | slots[0]);
			continue;
		}
		std::vector<uint8_t> coded;
		NibbleWriter out(coded);
		uint32_t before = kNone;
		for (const uint32_t pos : slots) {
			if (pos == kNone) {
				out.put(kEmpty);
				continue;
			}
			if (before != kNone && pos > before && pos - before < kAnywhere) {
				out.put(pos - before);
			} else {
				out.put(kAnywhere);
				for (int i = 0; i < 8; ++i) out.put(pos >> 4 * i & 15);
			}
			before = pos;
		}
		make_room(bytes_, coded.size());
		starts_.push_back(uint32_t(bytes_.size()));
		bytes_.insert(bytes_.end(), coded.begin(), coded.end());
	}
	open_.erase(open_.begin(), open_.begin() + std::ptrdiff_t(n) * page_);
	if (open_.capacity() > open_.size() + 4 * page_) open_.shrink_to_fit(); // after a prompt, memory is released
}

void SlotPositions::restore(Saved&& s) noexcept {
	starts_.resize(s.n_starts), bytes_.resize(s.n_bytes); // both were at least this long before, or are now
	open_ = std::move(s.open);
}

void SlotPositions::unpack(uint32_t page, std::span<uint32_t> to) const {
	if (starts_[page] & kRun) {
		for (uint32_t i = 0; i < to.size(); ++i) to[i] = (starts_[page] & ~kRun) + i;
		return;
	}
	NibbleReader in(&bytes_[starts_[page]]);
	uint32_t before = kNone;
	for (uint32_t& pos : to) {
		const uint32_t code = in.get();
		if (code == kAnywhere) {
			before = 0;
			for (int i = 0; i < 8; ++i) before |= in.get() << 4 * i;
		} else if (code != kEmpty) {
			before += code;
		}
		pos = code == kEmpty ? kNone : before;
	}
}

uint32_t SlotPositions::at(uint32_t slot) const {
	const uint32_t page = slot / page_, in_page = slot % page_;
	KV_ASSERT(slot < n_slots());
	if (page >= n_sealed()) return open_[slot - n_sealed() * page_];
	if (starts_[page] & kRun) return (starts_[page] & ~kRun) + in_page;
	constexpr uint32_t kMostPage = 128;
	uint32_t pos[kMostPage];
	KV_ASSERT(page_ <= kMostPage);
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
