// A drafter that looks up the latest tokens in the text itself.
#include "engine/run/draft_lookup.h"
#include <bit>

namespace kvrun {

constexpr size_t kLeastPlaces = 1024;
constexpr size_t kTries = 4; // table entries that a run of tokens may use

uint32_t& LookupDrafter::place(uint32_t n, size_t end) {
	uint64_t h = n;
	for (size_t i = end - n; i < end; ++i) h = (h ^ text_[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
	const size_t mask = ends_.size() - 1;
	for (size_t i = 0; i < kTries; ++i)
		if (uint32_t& at = ends_[(h + i) & mask]; at == 0 || same(n, at, end)) return at;
	return ends_[h & mask];
}

bool LookupDrafter::same(uint32_t n, size_t a, size_t b) const {
	return a >= n &&
	       std::equal(text_.begin() + ptrdiff_t(a - n), text_.begin() + ptrdiff_t(a), text_.begin() + ptrdiff_t(b - n));
}

void LookupDrafter::grow() {
	ends_.assign(std::max(kLeastPlaces, std::bit_ceil((text_.size() + 1) * 8)), 0);
	for (size_t end = 1; end <= text_.size(); ++end)
		for (uint32_t n = kShortest; n <= kLongest && n <= end; ++n) place(n, end) = uint32_t(end);
}

void LookupDrafter::add(uint32_t token) {
	if ((text_.size() + 1) * 4 > ends_.size()) grow();
	text_.push_back(token);
	match_ = {};
	const size_t end = text_.size();
	for (uint32_t n = kShortest; n <= kLongest && n <= end; ++n) {
		uint32_t& last = place(n, end);
		// A run of another length may have stored this end in the same entry.
		if (last && last != end && same(n, last, end)) match_[n] = last;
		last = uint32_t(end);
	}
}

void LookupDrafter::accept(std::span<const uint32_t> tokens) {
	for (const uint32_t t : tokens) add(t);
}

std::span<const uint32_t> LookupDrafter::draft(uint32_t most) {
	drafted_.clear();
	for (uint32_t n = kLongest; n >= kShortest; --n) {
		if (!match_[n]) continue;
		for (size_t at = match_[n]; drafted_.size() < most; ++at)
			drafted_.push_back(at < text_.size() ? text_[at] : drafted_[at - text_.size()]);
		break;
	}
	return drafted_;
}

} // namespace kvrun
