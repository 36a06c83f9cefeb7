// Layer inputs: vectors that each layer reads for the token itself, beside the residual stream.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Needs sizes in c. Sets Config::layer_input_dim. Refuses layer inputs in families without them, and a table whose
// blocks cross the border between two layers.
void read_layer_inputs(const ConfigKeys&, const Family&, Config& c);
void add_layer_input_specs(std::vector<TensorSpec>&, const Config&);             // tensors of the model
void add_layer_input_specs(std::vector<TensorSpec>&, const Config&, uint32_t l); // tensors of a layer

} // namespace kvrun
