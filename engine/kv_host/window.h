// The cache of layers with a sliding window: the latest tokens in f16, every older one is forgotten at once.
#pragma once
#include "engine/kv_host/plan.h"

namespace kvrun {

// A token attends to so many latest tokens, its own included: the cache holds exactly these after each decoded token.
KvPlan make_window_plan(const KvShape&, uint32_t window);

} // namespace kvrun
