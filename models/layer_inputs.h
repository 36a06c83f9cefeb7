// Inputs of layers: what each layer reads of the token itself, beside the residual stream.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"

namespace kvrun {

// c has sizes. Sets Config::layer_input_dim; refuses it in families without it, and a table that cannot be cut.
void read_layer_inputs(const ConfigKeys&, bool of_family, Config& c);
void add_layer_input_specs(std::vector<TensorSpec>&, const Config&);             // of the model
void add_layer_input_specs(std::vector<TensorSpec>&, const Config&, uint32_t l); // of a layer

} // namespace kvrun
