// The cache of layers with a window: the tokens that the latest one sees, in f16; the others are dropped.
#pragma once
#include "engine/kv_host/plan.h"

namespace kvrun {

// Of a sliding window the cache holds what the next token attends to, and up to kLag tokens more (not more than a
// window), which rows do not see (KvPlan::window): they are dropped together, and before they are, a step can take back
// its drafts. Of chunks it holds exactly what a token attends to: the first token of a chunk drops the one before it.
KvPlan make_window_plan(const KvShape&, Window);
constexpr uint32_t kLag = 32;
// Most bytes of such a cache, of a sequence of up to n tokens.
size_t window_bytes(const KvPlan&, uint64_t n_tokens);

} // namespace kvrun
