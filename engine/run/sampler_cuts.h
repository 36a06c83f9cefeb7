// The cuts of sampling: which candidates may be chosen, and how their shares depend on the temperature. Each keeps at
// least one candidate and their order.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace kvrun {

struct Candidate {
	float logit;  // after penalties and bias
	uint32_t id;  // token
	double share; // its probability after all cuts, before normalisation
};
// The more likely first, then the lower id.
inline bool likelier(const Candidate& a, const Candidate& b) {
	return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// exp((logit - max) / temperature); temperature > 0
double share_of(float logit, float max, double temperature);

// In each of these candidates are sorted, the likeliest first, and probabilities are those at temperature 1. least:
// that many of them are kept at any rate, if there are so many.

// The candidates whose surprise -log p is closest to the entropy of all, until their probabilities exceed p (Meister et
// al., arXiv:2202.00666). p: 0 to 1
void keep_typical(std::vector<Candidate>&, double p, size_t least);
// The most likely that hold the share p of the probability (nucleus sampling, arXiv:1904.09751). all: sum of exp(logit
// - max); nullopt: that of the candidates.
void keep_top_p(std::vector<Candidate>&, double p, std::optional<double> all, size_t least);
// Those at least p times as likely as the likeliest (arXiv:2407.01082).
void keep_min_p(std::vector<Candidate>&, double p, size_t least);
// XTC, "exclude top choices" (text-generation-webui 6335): of the candidates at least this probable, the least likely
// stays; with fewer than two of them, or where fewer than `least` candidates would remain, all do.
void exclude_top(std::vector<Candidate>&, double threshold, size_t least);
// The temperature for these candidates: from temperature - range, where one is certain, to temperature + range, where
// all are equally likely: by the entropy relative to its maximum, to the power of `exponent`. At least 0.
double dynamic_temperature(const std::vector<Candidate>&, double temperature, double range, double exponent);

} // namespace kvrun
