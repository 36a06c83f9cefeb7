// Recurrent layers as files describe them: gated delta rule after a short convolution.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

struct RecurrentLayers {
	Recurrent shape = {};
	std::vector<bool> layers = {}; // which layers are recurrent; empty: none
};
RecurrentLayers read_recurrent(const ConfigKeys&, const Family&, const Config&);
void place_recurrent(Config&, const RecurrentLayers&);
void add_recurrent_specs(std::vector<TensorSpec>&, const Recurrent&, uint32_t l, uint32_t dim);

} // namespace kvrun
