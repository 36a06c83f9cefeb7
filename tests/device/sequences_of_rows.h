#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvrun {

// Sequences of one dispatch: rows of each.
using Sequences = std::vector<uint32_t>;

inline uint32_t sum(const Sequences& s) { return std::accumulate(s.begin(), s.end(), 0u); }

} // namespace kvrun
