// kvrun_weight_options as the engine reads them.
#include "engine/api/weight_options.h"

namespace kvrun::api {

kvrun_weight_options read_weight_options(const kvrun_weight_options* given) {
	constexpr kvrun_weight_options defaults = KVRUN_WEIGHT_OPTIONS_INIT;
	return read_options(given, defaults, "kvrun_weight_options");
}

WeightOptions placement_of(const kvrun_weight_options& o) {
	WeightOptions out = {.budget = o.budget_bytes, .cpu_moe_layers = o.cpu_moe_layers, .fit = !o.no_fit};
	if (o.gpu_layers != KVRUN_ALL_LAYERS) out.gpu_layers = o.gpu_layers;
	return out;
}

} // namespace kvrun::api
