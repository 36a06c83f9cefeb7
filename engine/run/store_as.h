// One prompt under many policies: the model reads it once with an f16 cache, and each policy stores the keys and values
// from there.
#pragma once
#include "engine/run/session.h"

namespace kvrun {

// Gives `to`, an empty session of the same engine, the tokens of `from`, whose cache is f16. `to` is bit-identical to
// one that read them as a prompt, but no attention runs. Throws Error{Invalid} on a policy that needs queries of a
// prompt (ranks, balancers) or fetches, Unsupported if all layers have a window and so no policy; OutOfMemory.
void store_as(Session& to, Session& from);
bool can_store_as(const Session& to); // its policy needs no queries and does not fetch; some layer has no window

// Computes each layer's attention for the n rows after the tokens of `s`, which does not change. next: a session whose
// cache is f16, with the same tokens and `n` or more after them, for those rows' own keys and values. queries: by layer
// of the model; empty for a layer that is not wanted. Returns (n, n_heads, head_dim) for each. n: at most
// Engine::ubatch().
struct LayerQueries {
	std::vector<float> q;    // (n, n_heads, head_dim)
	std::vector<float> rope; // (n, n_heads, rope_dim) with latent attention, else empty
};
std::vector<std::vector<float>> attend_as(Session& s, const Session& next, uint32_t n,
                                          std::span<const LayerQueries> queries);

} // namespace kvrun
