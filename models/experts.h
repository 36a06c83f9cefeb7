// Mixtures of experts as files describe them: keys, tensors, and which layers have one.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

struct Mixture {
	Experts experts = {};          // n == 0: the model is dense
	uint32_t first = 0;            // layers before it are dense
	uint32_t period = 1;           // every so-many-th of the other layers is a mixture
	std::vector<bool> layers = {}; // which layers may be one, whatever first and period say; empty: all
	bool has(uint32_t layer) const {
		return experts.n && layer >= first && (layer + 1) % period == 0 && (layers.empty() || layers[layer]);
	}
};

// Needs sizes and layers in c. Refuses contradictory numbers, and mixtures in families that have none.
Mixture read_mixture(const ConfigKeys&, const Family&, const Config& c);
void place_experts(Config&, const Mixture&);
// Needs experts placed and sizes of heads. Sets Layer::value_experts of layers that are mixtures.
void place_value_experts(const ConfigKeys&, const Family&, Config&);
void add_expert_specs(std::vector<TensorSpec>&, const Layer&, uint32_t l, uint32_t dim, uint32_t vocab);
// Tensors of a mixture are never ignored.
bool is_expert_tensor(std::string_view name);

} // namespace kvrun
