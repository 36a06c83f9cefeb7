// `auto` and `tuned:BITS`: the policy that loses least in a budget, by what each layer's keys and values cost in each
// format.
#pragma once
#include "engine/kv_host/plan.h"
#include <array>
#include <iterator>

namespace kvrun {

// Whether a parsed policy stands for one that choose_policy() finds; make_plan() refuses it.
bool is_choice(const KvPolicy&);

// How the keys, or the values, of a layer may be stored, in pages of `turbo`: as a rotated codebook, or as uniform
// codes with scale and zero point, of keys per channel and page, of values per token and 64 channels.
struct SideFormat {
	uint8_t bits;
	bool uniform;
};
constexpr SideFormat kSideFormats[] = {{1, false}, {2, false}, {3, false}, {4, false}, {1, true},
                                       {2, true},  {3, true},  {4, true},  {8, true}};
constexpr int kNSideFormats = int(std::size(kSideFormats)), kEightBits = kNSideFormats - 1;
// Options of `turbo` that give one side of layers first .. last this format, each with a comma before it.
std::string side_options(SideFormat, bool is_k, size_t first, size_t last);

using SideCost = std::array<double, kNSideFormats>; // KL divergence to expect where only this side has that format
struct LayerCost {
	SideCost k = {}, v = {};
};
struct Tuning {
	std::vector<LayerCost> layers;
};
// Where nothing was measured: by the error of each number of bits, keys ten times as much as values. Codebooks and 8
// bits only: nothing says where uniform codes of fewer bits would be better, so they cost infinity.
Tuning guessed_tuning(uint32_t n_layers);

// Bits per element of full pages, with all parameters; what a budget in bits is about.
double packed_bits(const KvPlan&);

// `turbo` with the formats of each layer's keys and values that cost least together in a budget of packed_bits(). Keys
// get 2 bits or more unless the budget has no room for them. Throws Error{Invalid} where it has no room at all.
// `options`: of the policy, each with a comma before it.
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
