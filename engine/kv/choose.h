// `auto` and `tuned:BITS`: the policy that loses least in a budget, by what each layer's keys and values cost at each
// number of bits.
#pragma once
#include "engine/kv/plan.h"

namespace kvrun {

// Whether a parsed policy stands for one that choose_policy() finds; make_plan() refuses it.
bool is_choice(const KvPolicy&);

constexpr int kChoiceBits[] = {1, 2, 3, 4, 8}; // a side of a layer may have
struct LayerCost {               // KL divergence to expect where only this side of this layer has so many bits
	double k[9] = {}, v[9] = {}; // by bits; those of kChoiceBits
};
struct Tuning {
	std::vector<LayerCost> layers;
};
// Where nothing was measured: by the error of each number of bits, keys ten times as much as values.
Tuning guessed_tuning(uint32_t n_layers);

// Bits per element of full pages, with all parameters; what a budget in bits is about.
double packed_bits(const KvPlan&);

// Rotated codebooks, and 8 bits, with the bits of keys and values of each layer that cost least together in a budget of
// packed_bits(). Keys get 2 bits or more unless the budget has no room for them. Throws Error{Invalid} where it has no
// room at all. `options`: of the policy, each with a comma before it.
std::string assign_bits(const Tuning&, const KvShape&, double bits, const std::string& options = {});

struct Choice {
	KvPolicy policy;
	std::string why; // one line: what it takes, and what the next better one would need
	double kld = -1; // expected KL divergence from an f16 cache, in nats per token; below 0: not measured
};
// tuning: null for the guess. `auto` is for n_tokens in budget_bytes and never evicts; throws Error{OutOfMemory} where
// nothing fits. A policy that is no choice is returned as it is.
Choice choose_policy(const KvPolicy&, const KvShape&, const Tuning* tuning, uint64_t n_tokens, size_t budget_bytes);

} // namespace kvrun
