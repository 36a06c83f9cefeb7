// Sampling options of the C API as those of the engine.
#pragma once
#include "engine/kvrun.h"
#include "engine/run/sampler.h"

namespace kvrun::api {

// All but `bias`; for check_sampler().
SamplerOptions sampler_options(const kvrun_generate_options&);

} // namespace kvrun::api
