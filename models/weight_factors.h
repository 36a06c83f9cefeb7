// Factors of whole matrices, in tensors of their own: files of NVFP4 have blk.N.WHAT.scale beside blk.N.WHAT.weight.
#pragma once
#include "models/gguf.h"
#include <string>
#include <vector>

namespace kvrun {

std::string weight_factors_name(std::string_view weight); // of the tensor, if there is one
// Whether `weight`, which is `depth` matrices, has factors. Refuses any but F32, one for each matrix or one for all.
bool check_weight_factors(const Gguf&, std::string_view weight, uint32_t depth);
// The factors: one per matrix, one, or none. Refuses any that is not finite.
std::vector<float> weight_factors(const Gguf&, std::string_view weight, uint32_t depth);

} // namespace kvrun
