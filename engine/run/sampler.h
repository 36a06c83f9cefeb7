// Chooses the next token from logits: penalties, bias, cuts, temperature; same seed, same tokens.
#pragma once
#include "engine/run/adaptive_p.h"
#include "engine/run/dry.h"
#include "engine/run/logit_blocks.h"
#include "engine/run/logits.h"
#include "engine/run/mirostat.h"
#include "engine/run/sampler_cuts.h"
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvrun {

// Penalties and bias come first, then the cuts in the order sigma, top-k, typical, top-p, min-p, XTC, and last the
// temperature, as in llama.cpp; then adaptive-p. With Mirostat it alone decides what is kept, of probabilities with the
// temperature.
struct SamplerOptions {
	double temperature = 0.8;  // logits are divided by it; <= kGreedyTemperature: the most likely token, without cuts
	uint32_t top_k = 40;       // candidates kept; 0: all
	double top_p = 0.95;       // of those, the most likely that hold this share of the probability; 1: all
	double min_p = 0.05;       // of those, the ones at least this likely relative to the most likely; 0: all
	double repeat_penalty = 1; // > 1 makes recent tokens less likely (CTRL, arXiv:1909.05858); 1: off
	uint32_t repeat_last = 64; // tokens that count as recent
	uint64_t seed = 0;         // of the random numbers
	// Subtracted from the logit of a token of the answer: once per token, and once per occurrence. 0: off.
	double presence_penalty = 0, frequency_penalty = 0;
	std::vector<std::pair<uint32_t, float>> bias = {}; // (token, added to its logit); -INFINITY: never this token
	double top_n_sigma = 0;     // keeps logits within this many standard deviations of the largest; <= 0: all
	double typical_p = 1;       // keep_typical(); 1: off
	double xtc_probability = 0; // of exclude_top() at a token; 0: off
	double xtc_threshold = 0.1; // more than 0.5: off, because two tokens cannot be as probable
	uint32_t min_keep = 0;      // typical, top-p, min-p and XTC each leave at least this many of what they get; 0: one
	double dynatemp_range = 0, dynatemp_exponent = 1; // dynamic_temperature(); range 0: off
	DryOptions dry = {};
	MirostatOptions mirostat = {};
	AdaptiveOptions adaptive = {};
	std::vector<uint32_t> never = {}; // tokens that are not chosen; a few
};
constexpr double kGreedyTemperature = 1e-6;

// Throws Error{Invalid} naming the first option outside its range.
void check_sampler(const SamplerOptions&);

// Which tokens may be chosen.
struct TokenFilter {
	std::function<bool(uint32_t)> allows;               // one token
	std::function<std::span<const uint64_t>()> allowed; // a bit for each token
};

// Equal logits rank by id, lowest first, so greedy sampling is defined for all inputs. -inf is never chosen. A logit
// that is NaN or +inf, or no logit above -inf, throws Error{Device}: such values come from a broken driver or file,
// and the resulting answer would look valid.
class Sampler {
 public:
	explicit Sampler(const SamplerOptions&, Dry::TokenText = {}); // text: only for options.dry.breakers
	void accept(uint32_t token);                    // a token of the prompt or the answer, for repeat penalty and DRY
	void count(uint32_t token);                     // a token of the answer, for presence and frequency penalty
	uint32_t sample(std::span<const float> logits); // logits (vocab); does not accept() the result
	// How many of the largest logits suffice to sample the same token as from all; 0: all are needed.
	uint32_t wanted() const;
	uint32_t sample(const RowLogits&); // may have only `top` if wanted() > 0, with at least so many
	// The same among allowed tokens only: the result is as if all others had been excluded first. wanted_to_filter():
	// length of a list that most likely holds enough allowed tokens. Returns nullopt if `top` did not. Throws
	// Error{Unsupported} if no token is allowed.
	uint32_t wanted_to_filter() const;
	std::optional<uint32_t> sample(const RowLogits&, const TokenFilter&);
	// What the last sample() chose from, and the sum of their shares. One candidate after a greedy choice.
	std::span<const Candidate> candidates() const { return candidates_; }
	double total() const { return total_; }

 private:
	std::span<const float> changed(std::span<const float> logits); // by penalties and bias; else the logits themselves
	void penalise_recent();
	// Candidates by id: logits above -inf, among them all that the cuts keep, and none that the first of them, sigma,
	// removes. Returns the sum of exp(logit - maximum) over all logits where top-p needs it, and not only that of the
	// candidates.
	std::optional<double> gather(std::span<const float> logits);
	std::span<const float>
	scanned(std::span<const float> logits); // after the penalty; throws if they are not finite numbers
	uint32_t sample_allowed(std::span<const float> logits, const TokenFilter&);
	void cut(std::optional<double> all); // `all` as gather() returned it
	// Mirostat: the sum of shares of all logits, with the temperature; candidates that it may keep, and its cut.
	double gather_surprising(std::span<const float> logits);
	void cut_surprising(double all);
	uint32_t choose_only(Candidate);
	uint32_t draw(std::optional<double> all); // one of candidates_; `all` as gather() returned it
	bool is_never(uint32_t token) const { return std::ranges::count(options_.never, token) > 0; }
	uint32_t needed() const; // of wanted(), those that may be chosen
	bool greedy() const { return options_.temperature <= kGreedyTemperature || options_.top_k == 1; }
	double random(); // 0 to 1, without 1
	SamplerOptions options_;
	std::mt19937_64 random_;
	Dry dry_;
	std::vector<uint32_t> recent_;                  // (<= repeat_last) ring of accepted tokens
	size_t recent_at_ = 0;                          // next place in the ring
	std::unordered_map<uint32_t, uint32_t> counts_; // of tokens of the answer; empty without their penalties
	std::vector<float> changed_;                    // (vocab) logits; empty if nothing changes them
	std::vector<float> filtered_;                   // (vocab) logits, -inf where a filter does not allow the token
	LogitBlocks blocks_;                            // of the logits, after penalties and bias
	std::vector<Candidate> candidates_;             // (vocab) and fewer after the cuts
	double total_ = 0;                              // sum of shares
	Mirostat mirostat_;
	AdaptiveP adaptive_;
};

} // namespace kvrun
