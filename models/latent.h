// Latent attention (MLA) as files describe it.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Of a family that has it; sets heads and their channels in `c` and `sizes` to those of what is cached.
Latent read_latent(const ConfigKeys&, const Family&, Config& c, LayerSizes& sizes);
// Factor of scores: what YaRN multiplies cos and sin by in other families is in here, so that it is taken out there.
float latent_scale(const ConfigKeys&, const Latent&, Rope&);
void add_latent_specs(std::vector<TensorSpec>&, const Layer&, uint32_t l, uint32_t dim);

} // namespace kvrun
