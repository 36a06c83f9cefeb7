// The cache of layers with a sliding window: the latest tokens in f16; older tokens are dropped at once.
#pragma once
#include "engine/kv_host/plan.h"

namespace kvrun {

// A token attends to the latest `window` tokens, including itself: the cache holds exactly these after each decoded
// token.
KvPlan make_window_plan(const KvShape&, uint32_t window);

} // namespace kvrun
