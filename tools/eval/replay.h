// A prompt given as tensors, processed by the device's cache path: what a method stores, and the output of attention.
#pragma once
#include "backends/backend.h"
#include "engine/core/npy.h"
#include "engine/kv_host/plan.h"
#include <functional>

namespace kvrun {

struct ReplayInput {
	uint32_t n_layers, n_tokens, n_heads, n_kv_heads, head_dim, n_queries;
	std::span<const float> q;          // (n_layers, n_tokens, n_heads, head_dim) after RoPE
	std::span<const float> k, v;       // (n_layers, n_tokens, n_kv_heads, head_dim)
	std::span<const float> dq;         // (n_queries, n_heads, head_dim) decode rows for the last layer
	std::vector<uint32_t> probes = {}; // prompt rows that contribute to the score, ascending, for policies that score
	                                   // only some rows; empty: the policy's choice
	uint64_t seed = 1;                 // for a policy's random choices
};
// The tensors of a replay, read from files; shapes and values are checked against each other.
struct ReplayFiles {
	struct Paths {
		std::string q, k, v, dq, probes; // .npy: f32 of the shapes above, probes i64; probes may be empty
	};
	// Throws Error{Io, Format, Invalid, Unsupported}: one line that names the file.
	explicit ReplayFiles(const Paths&);
	ReplayInput input; // refers to the arrays below
	ReplayFiles(const ReplayFiles&) = delete;

 private:
	NpyArray q_, k_, v_, dq_;
};

struct ReplayResult {
	std::vector<float> k_hat, v_hat; // (n_layers, n_tokens, n_kv_heads, head_dim) NaN = evicted
	std::vector<uint8_t> tier;       // (n_layers, n_tokens, n_kv_heads) 0 f16, 1 salient, 2 regular, 3 evicted
	std::vector<float> score;        // (n_layers, n_tokens, n_kv_heads); empty if the policy has none
	std::vector<float> out;          // (n_queries, n_heads, head_dim)
	KvBytes bytes;
	size_t pool_bytes = 0; // device memory of pages
};

// plan: make_plan(policy, {n_layers, n_kv_heads, head_dim}). progress: gets the number of finished layers; may be
// empty. Throws Error{Invalid} for tensors that do not fit each other, OutOfMemory, Device.
ReplayResult replay(Backend&, const KvPlan& plan, const ReplayInput&,
                    const std::function<void(uint32_t)>& progress = {});

} // namespace kvrun
