// The largest of many logits, in one pass over them.
#include "engine/run/logit_blocks.h"
#include "engine/core/error.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace kvrun {
namespace {

// Integers in the order of the floats (negative NaN < -inf < ... < +inf < NaN); compilers vectorise their comparison.
constexpr int32_t key(float x) {
	const int32_t bits = std::bit_cast<int32_t>(x);
	return bits ^ (bits >> 31 & 0x7fffffff);
}
constexpr float value(int32_t key) { return std::bit_cast<float>(key ^ (key >> 31 & 0x7fffffff)); }
constexpr int32_t kLeast = key(-std::numeric_limits<float>::infinity()), kMost = key(std::numeric_limits<float>::max());

} // namespace

void LogitBlocks::scan(std::span<const float> logits) {
	logits_ = logits;
	block_max_.resize((logits.size() + kBlock - 1) / kBlock);
	int32_t most = kLeast, least = kMost;
	for (size_t b = 0; b < block_max_.size(); ++b) {
		const float* x = &logits[b * kBlock];
		int32_t high = std::numeric_limits<int32_t>::min(), low = std::numeric_limits<int32_t>::max();
		for (size_t i = 0, n = size_of(b); i < n; ++i) {
			const int32_t k = key(x[i]);
			high = std::max(high, k), low = std::min(low, k);
		}
		block_max_[b] = value(high);
		most = std::max(most, high), least = std::min(least, low);
	}
	max_ = value(most);
	ordered_ = most <= kMost && least >= kLeast;
}

size_t LogitBlocks::first_max() const {
	KV_ASSERT(!logits_.empty());
	const auto is_max = [&](float x) { return !(x < max_); }; // also true for a NaN
	const auto block = size_t(std::ranges::find_if(block_max_, is_max) - block_max_.begin());
	const auto part = logits_.subspan(block * kBlock, size_of(block));
	return block * kBlock + size_t(std::ranges::find_if(part, is_max) - part.begin());
}

float LogitBlocks::bound(size_t k) {
	if (k > block_max_.size()) return -std::numeric_limits<float>::infinity();
	sorted_ = block_max_;
	const auto kth = sorted_.begin() + ptrdiff_t(k - 1);
	std::nth_element(sorted_.begin(), kth, sorted_.end(), std::greater<>());
	return *kth;
}

// A histogram of probability over logits, in steps of 1/32 below the maximum; the last step holds all logits that are
// 32 or more below it.
LogitBlocks::Mass LogitBlocks::mass(double part) const {
	constexpr float kSteps = 32;
	std::array<double, 1025> sums{};
	for (const float x : logits_) {
		const float below = max_ - x;
		sums[size_t(std::min(below * kSteps, float(sums.size() - 1)))] += std::exp(double(x) - double(max_));
	}
	Mass out{std::accumulate(sums.begin(), sums.end(), 0.0), -std::numeric_limits<float>::infinity()};
	double have = 0;
	for (size_t i = 0; i + 1 < sums.size(); ++i)
		// Against rounding: one step below the last needed one, and slightly more of the sum than requested.
		if ((have += sums[i]) >= part * out.sum * (1 + 1e-9)) {
			out.bound = max_ - float(i + 2) / kSteps;
			break;
		}
	return out;
}

} // namespace kvrun
