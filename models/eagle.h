// EAGLE-3: files with one layer that guesses the next tokens of one model. Its input of a position is the embedding of
// the token behind it, and a row that is made of the model's residual streams of that position in front of three
// layers: g = fc . (a | b | c). Attention reads (norm(embedding) | norm(g)); the residual stream begins with g. The
// stream behind the layer is the g of the position behind it, as long as the model's own is not known.
#pragma once
#include "models/fusion.h"

namespace kvrun {

constexpr const char* kEagleStateNorm = "blk.0.attn_norm_2.weight";

void read_eagle_keys(const ConfigKeys&, Config&); // after read_fusion()
void add_eagle_specs(std::vector<TensorSpec>&, const Config&);

} // namespace kvrun
