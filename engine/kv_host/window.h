// The cache of layers with a window: the tokens that the latest one sees, in f16; the others are dropped at once.
#pragma once
#include "engine/kv_host/plan.h"

namespace kvrun {

// The cache holds exactly what a decoded token attends to. A sliding window drops one token with each; the first token
// of a chunk drops the whole chunk before it.
KvPlan make_window_plan(const KvShape&, Window);

} // namespace kvrun
