// Files whose layers draft for one model from its hidden states (--draft FILE): what EAGLE-3 and DFlash have in common.
// States of several layers of the model are joined to one row per token. Embedding and output are the file's or the
// model's; the file's output may know fewer tokens than the model, and a table says which ones.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"

namespace kvrun {

constexpr const char *kFusionJoin = "fc.weight", *kFusionNorm = "enc.output_norm.weight";

// Sets Config::fusion, target_dim and vocab from the file, of read_config(). Throws Error{Invalid} if it was made for
// another model than `of`.
void read_fusion(const ConfigKeys&, const Config& of, Config&);
// Throws Error{Format} if embedding or output should be the model's, and cannot be.
void check_shared(const Gguf&, const Config&, const Config& of);
// Channels of what is joined.
inline uint32_t fused_states(const Config& c) { return uint32_t(c.fusion.layers.size()) * c.target_dim; }
void add_fusion_specs(std::vector<TensorSpec>&, const Config&); // in front of the layers
// (vocab) tokens of the model by row of the output; empty: they are the same. Throws Error{Format} if it names others.
std::vector<uint32_t> read_token_table(const Gguf&, const Config&);

} // namespace kvrun
