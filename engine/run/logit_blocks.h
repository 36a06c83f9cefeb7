// Finds the largest of many logits in one pass: it keeps the maximum of each block, and searches only blocks whose
// maximum is large enough again.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class LogitBlocks {
 public:
	// The logits must outlive the calls below, which refer to them.
	void scan(std::span<const float> logits);
	bool ordered() const { return ordered_; } // no logit is NaN or +inf
	size_t size() const { return logits_.size(); }
	float max() const { return max_; } // -inf of none; only if ordered()
	size_t first_max() const;          // first index of max(); some index if not ordered(). n >= 1
	// A bound that at least k logits reach, and not many more if logits are in no special order; -inf if there are
	// fewer blocks than k.
	float bound(size_t k);
	// The sum of exp(logit - max()) over all logits, and a bound: logits at or above it hold at least `part` (0 to 1)
	// of that sum, and not many more logits than needed reach it. Only if max() is finite.
	struct Mass {
		double sum;
		float bound;
	};
	Mass mass(double part) const;
	// Calls f(index, logit) for every logit >= bound, ordered by index.
	template <class F> void at_least(float bound, F f) const {
		for (size_t b = 0; b < block_max_.size(); ++b) {
			if (!(block_max_[b] >= bound)) continue;
			for (size_t i = b * kBlock, end = i + size_of(b); i < end; ++i)
				if (logits_[i] >= bound) f(i, logits_[i]);
		}
	}

 private:
	static constexpr size_t kBlock = 128;
	size_t size_of(size_t block) const { return std::min(kBlock, logits_.size() - block * kBlock); }
	std::span<const float> logits_;
	std::vector<float> block_max_, sorted_; // (blocks)
	float max_ = 0;
	bool ordered_ = false;
};

} // namespace kvrun
