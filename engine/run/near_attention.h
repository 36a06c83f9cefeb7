// Attention on the host, of rows that see few others: it is little beside the projections around it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

// Scores become their shares.
void to_shares(std::span<float> scores);

constexpr uint32_t kRowsBefore = 12; // that a row of attend_before() sees: itself and those before it

// q, k, v: (n, heads * head_dim); places: (kRowsBefore, heads * head_dim), keys of distances. Scores have a limit. As
// q.
std::vector<float> attend_before(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 const std::vector<float>& places, uint32_t n, uint32_t heads, uint32_t head_dim);

// Rows see those of their block, the last of which may be shorter. places: as ConformerWeights::places.
std::vector<float> attend_blocks(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 const std::vector<float>& places, uint32_t n, uint32_t block, uint32_t heads,
                                 uint32_t head_dim);

// Each `asking` rows of q see `asked` rows of k and v.
std::vector<float> attend_groups(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 uint32_t asking, uint32_t asked, uint32_t heads, uint32_t head_dim);

} // namespace kvrun
