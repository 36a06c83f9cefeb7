// A flat hash table from a pair of 32-bit numbers to a small value, for lookups in the tokenizers' inner loops.
#pragma once
#include "models/inline_xxh3.h" // hashing eight bytes takes a few instructions; a call would cost more
#include "models/seeded_hash.h"
#include <vector>

namespace kvrun {

template <class V> class PairTable {
 public:
	// If the pair is present, its value stays. The pair of two UINT32_MAX cannot be stored.
	void insert(uint32_t a, uint32_t b, V value) {
		if (used_ * 3 >= cells_.size() * 2) grow();
		Cell& c = cells_[place(key(a, b))];
		if (c.key != kFree) return;
		c = {key(a, b), value};
		++used_;
	}
	const V* find(uint32_t a, uint32_t b) const {
		const Cell& c = cells_[place(key(a, b))];
		return c.key == kFree ? nullptr : &c.value;
	}

 private:
	static constexpr uint64_t kFree = UINT64_MAX;
	struct Cell {
		uint64_t key = kFree;
		V value{};
	};
	static uint64_t key(uint32_t a, uint32_t b) { return uint64_t(a) << 32 | b; }
	size_t place(uint64_t k) const { // index of the pair, or of the free cell for it
		size_t i = size_t(XXH3_64bits_withSecret(&k, sizeof k, secret_, kHashSecretBytes)) & (cells_.size() - 1);
		while (cells_[i].key != k && cells_[i].key != kFree) i = (i + 1) & (cells_.size() - 1);
		return i;
	}
	void grow() {
		std::vector<Cell> old(cells_.size() * 2);
		old.swap(cells_);
		for (const Cell& c : old)
			if (c.key != kFree) cells_[place(c.key)] = c;
	}
	const uint8_t* secret_ = hash_secret();
	std::vector<Cell> cells_ = std::vector<Cell>(64); // size is a power of two
	size_t used_ = 0;
};

} // namespace kvrun
