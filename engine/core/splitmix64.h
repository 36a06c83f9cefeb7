// splitmix64 (Steele, Lea, Flood 2014): the same numbers on every platform, which distributions of <random> do not
// guarantee.
#pragma once
#include <cstdint>

namespace kvrun {

constexpr uint64_t kSplitmixStep = 0x9e3779b97f4a7c15u;

// The number of a state; the next state is kSplitmixStep larger.
constexpr uint64_t splitmix64(uint64_t state) {
	uint64_t z = state;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

} // namespace kvrun
