// Which tokens a sequence reads in full precision at its next step. Pure; no device.
#pragma once
#include "engine/kv_host/cache.h"
#include <compare>
#include <span>
#include <vector>

namespace kvrun {

// Indices of the k largest non-negative weights, ascending; among equal ones the first.
std::vector<uint32_t> largest(std::span<const float> weight, uint32_t k);

// Packed tokens of a layer and kv head are numbered: slots of Salient pages first, then those of Regular pages. A
// packed token keeps its slot, but new Salient pages shift the numbers of Regular ones: numbers are valid for one step.
struct PackedSlots {
	uint32_t pages[kTiers] = {}; // of the sequence; F16 is not counted
	uint32_t page[kTiers] = {};  // tokens of a page
	PackedSlots() = default;
	explicit PackedSlots(const KvCache&);
	uint32_t first(Tier t) const { return t == Tier::Regular ? pages[1] * page[1] : 0; }
	uint32_t n() const { return first(Tier::Regular) + pages[2] * page[2]; }
	bool operator==(const PackedSlots&) const = default;
};
struct PackedSlot { // the same as a permanent place
	Tier tier;
	uint32_t slot; // logical page * page + index
	auto operator<=>(const PackedSlot&) const = default;
};
PackedSlot slot_of(const PackedSlots&, uint32_t number);

// The fetched tokens of every layer and kv head. All heads have the same number of tokens.
class FetchSet {
 public:
	FetchSet(uint32_t n_layers, uint32_t n_kv_heads) : heads_(n_kv_heads), slots_(size_t(n_layers) * n_kv_heads) {}

	void clear();
	bool empty() const;
	uint32_t n(uint32_t l) const { return uint32_t(slots_[size_t(l) * heads_].size()); } // of each kv head
	std::span<const PackedSlot> slots(uint32_t l, uint32_t head) const { return slots_[size_t(l) * heads_ + head]; }
	// picks (n_kv_heads, k) from top_k() for layer l: numbers below `packed.n()` are packed slots, the others are
	// tokens of this set in order; ~0: none.
	void first(uint32_t n); // keeps at most n tokens of each layer and head
	void add(uint32_t l, uint32_t head, PackedSlot s) { slots_[size_t(l) * heads_ + head].push_back(s); }
	void choose(uint32_t l, const PackedSlots& packed, std::span<const uint32_t> picks, uint32_t k);

 private:
	uint32_t heads_;
	std::vector<std::vector<PackedSlot>> slots_; // (n_layers, n_kv_heads)
};

} // namespace kvrun
