// Several residual streams per token: their metadata and tensors, with those of the other parts of their layers.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

constexpr float kGateCut = 1.6448533535f; // 95 % of a normal distribution is below it

// Needs layers in c. Sets Config::streams of families without hyper-connections, Layer::laurel_rank and Layer::gate_cut
// in families that have them.
void read_streams(const ConfigKeys&, const Family&, Config& c);
void add_stream_specs(std::vector<TensorSpec>&, const Config&);             // tensors of the model
void add_stream_specs(std::vector<TensorSpec>&, const Config&, uint32_t l); // tensors of a layer

} // namespace kvrun
