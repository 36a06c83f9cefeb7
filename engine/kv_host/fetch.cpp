// Which tokens a sequence reads in full precision at its next step.
#include "engine/kv_host/fetch.h"
#include "engine/core/error.h"
#include <algorithm>
#include <numeric>

namespace kvrun {

std::vector<uint32_t> largest(std::span<const float> weight, uint32_t k) {
	std::vector<uint32_t> index;
	for (uint32_t i = 0; i < weight.size(); ++i)
		if (weight[i] >= 0) index.push_back(i);
	if (index.size() > k) {
		std::stable_sort(index.begin(), index.end(), [&](uint32_t a, uint32_t b) { return weight[a] > weight[b]; });
		index.resize(k);
		std::sort(index.begin(), index.end());
	}
	return index;
}

PackedSlots::PackedSlots(const KvCache& c) {
	for (const Tier t : kAllTiers) {
		pages[int(t)] = c.n_pages(0, t);
		page[int(t)] = c.plan().page[int(t)];
	}
}

PackedSlot slot_of(const PackedSlots& p, uint32_t number) {
	KV_ASSERT(number < p.n());
	const uint32_t regular = p.first(Tier::Regular);
	return number < regular ? PackedSlot{Tier::Salient, number} : PackedSlot{Tier::Regular, number - regular};
}

void FetchSet::clear() {
	for (auto& s : slots_) s.clear();
}

void FetchSet::first(uint32_t n) {
	for (auto& s : slots_)
		if (s.size() > n) s.erase(s.begin() + n, s.end());
}

bool FetchSet::empty() const {
	return std::all_of(slots_.begin(), slots_.end(), [](const auto& s) { return s.empty(); });
}

void FetchSet::choose(uint32_t l, const PackedSlots& packed, std::span<const uint32_t> picks, uint32_t k) {
	KV_ASSERT(picks.size() == size_t(heads_) * k);
	for (uint32_t h = 0; h < heads_; ++h) {
		std::vector<PackedSlot>& now = slots_[size_t(l) * heads_ + h];
		std::vector<PackedSlot> next;
		for (const uint32_t number : picks.subspan(size_t(h) * k, k)) {
			if (number == kNone) break;
			if (number < packed.n()) {
				next.push_back(slot_of(packed, number));
			} else {
				KV_ASSERT(number - packed.n() < now.size());
				next.push_back(now[number - packed.n()]);
			}
		}
		std::ranges::sort(next);
		now = std::move(next);
	}
	for (uint32_t h = 1; h < heads_ && !picks.empty();
	     ++h) // every packed token is live or fetched, and all heads pack the same number
		KV_ASSERT(slots_[size_t(l) * heads_ + h].size() == n(l));
}

} // namespace kvrun
