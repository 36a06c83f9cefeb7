// Random places and values of tests over pages.
#pragma once
#include "tests/support/rig.h"
#include <numeric>
#include <utility>

namespace kvrun {

inline Floats rounded(Floats x) { // to halves
	for (float& v : x) v = round_f16(v);
	return x;
}
inline Words shuffled(uint32_t n, Random& random) { // 0 .. n - 1
	Words r(n);
	std::iota(r.begin(), r.end(), 0u);
	for (uint32_t i = n; i > 1; --i) std::swap(r[i - 1], r[random.below(i)]);
	return r;
}

} // namespace kvrun
