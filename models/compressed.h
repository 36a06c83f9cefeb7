// Layers that attend to entries of blocks beside a window (DeepSeek V4): their metadata and tensors.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Of a family that has them; sets heads and their channels in `c` and `sizes` to those of what is cached.
Latent read_shared_latent(const ConfigKeys&, Config& c, LayerSizes& sizes);
// Number of draft layers in block_count, of which such a file may say that it has them without having them.
uint32_t draft_layers(const ConfigKeys&);
// Sets Layer::blocks and rope, Config::ropes and indexer; after the layers are described.
void read_blocks(const ConfigKeys&, const Family&, Config&);
void add_shared_latent_specs(std::vector<TensorSpec>&, const Layer&, uint32_t l, uint32_t dim);
void add_block_specs(std::vector<TensorSpec>&, const Config&, uint32_t l);
// Sets Experts::by_token of the first layers; after experts are placed. Their tables name experts that there are.
void read_token_experts(const ConfigKeys&, const Family&, Config&);

} // namespace kvrun
