// Recurrent layers as files describe them: gated delta rule or state space after a short convolution, or the
// convolution alone.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

struct RecurrentLayers {
	Recurrent shape = {};
	std::vector<bool> layers = {}; // which layers are recurrent; empty: none
};
// Layers without KV heads are recurrent; in other families keys say which ones are.
bool attends_by_kv_heads(const Family&);
RecurrentLayers read_recurrent(const ConfigKeys&, const Family&, const Config&);
void place_recurrent(Config&, const RecurrentLayers&);
// Which layers are an MLP alone.
std::vector<bool> read_mlp_layers(const ConfigKeys&, const Config&);
void place_single_parts(Config&, const std::vector<bool>& mlp_layers);
void add_recurrent_specs(std::vector<TensorSpec>&, const Recurrent&, uint32_t l, uint32_t dim);

} // namespace kvrun
