// One prompt under many policies: the model reads it once, under an f16 cache, and each policy stores what it left
// there.
#pragma once
#include "engine/run/session.h"

namespace kvrun {

// `to`, an empty session of the same engine, then holds the tokens of `from`, whose cache is f16, as though it had read
// them as a prompt: to the bit, and without attention. Throws Error{Invalid} on a policy that asks a prompt's queries
// (ranks, balancers) or fetches, Unsupported where all layers have a window and keep no policy; OutOfMemory.
void store_as(Session& to, Session& from);
bool can_store_as(const Session& to); // its policy asks no queries and does not fetch, and not all layers have a window

// What attention of each layer computes for the rows behind the tokens of `s`, which does not change. next: a session
// whose cache is f16, with the same tokens and `n` or more behind them: those rows' own keys and values. queries: by
// layer of the model, (n, n_heads, head_dim); none for a layer that is not asked. Returns the same shapes. n: at most
// Engine::ubatch().
std::vector<std::vector<float>> attend_as(Session& s, const Session& next, uint32_t n,
                                          std::span<const std::vector<float>> queries);

} // namespace kvrun
