// EAGLE-3: files with one layer that guesses the next tokens of one model (--draft FILE). Its input of a position is
// the embedding of the token behind it, and a row that is made of the model's residual streams of that position in
// front of three layers: g = fc . (a | b | c). Attention reads (norm(embedding) | norm(g)); the residual stream begins
// with g. The stream behind the layer is the g of the position behind it, as long as the model's own is not known. The
// output may know fewer tokens than the model; a table says which ones.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"

namespace kvrun {

constexpr const char *kFusionJoin = "fc.weight", *kFusionNorm = "enc.output_norm.weight",
                     *kFusionStateNorm = "blk.0.attn_norm_2.weight";

// As read_draft_file().
Config read_eagle(const Gguf&, const Config& of);
// Sets Config::fusion, target_dim and vocab from the file, of read_config().
void read_fusion(const ConfigKeys&, const Config& of, Config&);
void add_fusion_specs(std::vector<TensorSpec>&, const Config&); // in front of the layer
// (vocab) tokens of the model by row of the output; empty: they are the same. Throws Error{Format} if it names others.
std::vector<uint32_t> read_token_table(const Gguf&, const Config&);

} // namespace kvrun
