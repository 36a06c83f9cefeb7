// kvrun_weight_options as the engine reads them.
#pragma once
#include "engine/api/options.h"
#include "models/weight_plan.h"

namespace kvrun::api {

kvrun_weight_options read_weight_options(const kvrun_weight_options*); // NULL: defaults
WeightOptions placement_of(const kvrun_weight_options&);               // without the context that must fit

} // namespace kvrun::api
