// `auto` and `tuned:BITS`: the policy with the smallest loss within a budget, from the cost of each format for each
// layer's keys and values.
#pragma once
#include "engine/kv_host/plan.h"
#include <array>
#include <iterator>

namespace kvrun {

// Whether a parsed policy stands for one that choose_policy() determines; make_plan() refuses it.
bool is_choice(const KvPolicy&);

// How the keys, or the values, of a layer may be stored in pages of `turbo`: as a rotated codebook, or as uniform codes
// with scale and zero point (keys per channel and page, values per token and 64 channels).
struct SideFormat {
	uint8_t bits;
	bool uniform;
};
constexpr SideFormat kSideFormats[] = {{1, false}, {2, false}, {3, false}, {4, false}, {1, true},
                                       {2, true},  {3, true},  {4, true},  {8, true}};
constexpr int kNSideFormats = int(std::size(kSideFormats)), kEightBits = kNSideFormats - 1;
// With latent attention the latent is stored as keys are, and the side of values is the rotated key, which has uniform
// codes of 4 or 8 bits for all its channels.
bool has_side_format(SideFormat, bool is_k, bool of_latent);
// Options of `turbo` that set this format for one side of layers first .. last, each with a comma before it.
std::string side_options(SideFormat, bool is_k, size_t first, size_t last, bool of_latent = false);

// Expected KL divergence if only this side has that format; infinite for formats that the side does not have.
using SideCost = std::array<double, kNSideFormats>;
struct LayerCost {
	SideCost k = {}, v = {};
};
struct Tuning {
	std::vector<LayerCost> layers;
};
// Without measurements: costs by the error of each number of bits, for keys ten times as much as for values. Codebooks
// and 8 bits only: uniform codes of fewer bits cost infinity, because nothing tells where they would be better.
Tuning guessed_tuning(uint32_t n_layers, bool of_latent = false);

// Bits per element of full pages, with all parameters; budgets in bits refer to it.
double packed_bits(const KvPlan&);

// `turbo` with the formats of each layer's keys and values that together cost least within a budget of packed_bits().
// Keys get at least 2 bits unless the budget is too small for that. Throws Error{Invalid} if no format fits. `options`:
// of the policy, each with a comma before it.
std::string assign_bits(const Tuning&, const KvShape&, double bits, const std::string& options = {});

struct Choice {
	KvPolicy policy;
	std::string why; // one line: what it takes, and what the next better one would need
	double kld = -1; // expected KL divergence from an f16 cache, in nats per token; below 0: not measured
};
// tuning: null for the guess. `auto` is for n_tokens in budget_bytes and never evicts; throws Error{OutOfMemory} if
// nothing fits. or_fewer: it is then for as many tokens as fit, and throws if none does. A policy that is not a choice
// is returned unchanged.
Choice choose_policy(const KvPolicy&, const KvShape&, const Tuning* tuning, uint64_t n_tokens, size_t budget_bytes,
                     bool or_fewer = false);

// Caches that `auto` chooses among where a larger one moves weights to host memory, from f16 to the fewest bits.
struct CacheStep {
	KvPolicy policy;
	double kld; // expected, in nats per token; a guess where tuning is null
};
std::vector<CacheStep> auto_steps(const KvPolicy& asked, const KvShape&, const Tuning* tuning);
bool is_auto(const KvPolicy&);

} // namespace kvrun
