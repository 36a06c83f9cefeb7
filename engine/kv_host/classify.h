// One flush: the tier of each token; and which rows feed the score. Pure functions.
#pragma once
#include "engine/kv_host/policy.h"
#include <cmath>
#include <span>

namespace kvrun {

// The result of one flush: indices into the candidates, ascending.
struct Flush {
	std::vector<uint32_t> salient, regular;
};

// Candidates are ordered oldest first: tokens kept by earlier flushes that may still be demoted, then the tokens
// leaving the window. `want`: how many stay Salient (how_many_salient). score: one per candidate, if ranked by score.
// Of equal scores the later token wins.
Flush classify(const Select&, uint32_t n_candidates, uint32_t want, std::span<const double> score);

// Whether token a ranks above token b: by score, NaN last; of equal scores the later token. A strict order, so that the
// result depends only on scores and positions.
struct Ranked {
	double score;
	uint32_t position; // in any numbering of the candidates where older ones come first
};
inline bool ranks_above(const Ranked& a, const Ranked& b) { // called for every token in f16
	const double x = std::isnan(a.score) ? -INFINITY : a.score, y = std::isnan(b.score) ? -INFINITY : b.score;
	return x != y ? x > y : a.position > b.position;
}

// How many of n_candidates are Salient after a flush. n_judged: the number that `ratio` is a share of: all tokens ever
// judged if kept tokens can be demoted, else only the candidates.
uint32_t how_many_salient(const Select&, uint32_t n_candidates, uint64_t n_judged);

// Rows of a prompt of n tokens that feed the score: round(probe_recent * n), at least 1, of the newest and
// round(probe_random * n) drawn from the others without replacement; ascending. Empty unless ranked by score.
std::vector<uint32_t> probe_rows(const Select&, uint32_t n, uint64_t seed);
// Whether a decoded token's row feeds the score: `index` of the token in its window of recent_keep + flush.
bool is_probe(const Select&, uint32_t index, uint64_t position, uint64_t seed);
bool ranks_every_row(const Select&); // whether this holds for every token

// Turns sums of saliency (n_kv_heads, n), over the prompt rows `rows`, into scores. Ranks with take_mean() divide each
// sum by the number of rows that see the token (at least 1); ScoreSum does not.
void normalise_scores(const Select&, std::span<float> sums, uint32_t n, std::span<const uint32_t> rows);

// Rounds half to even, like all rounding here.
uint64_t round_share(double share, uint64_t n);

} // namespace kvrun
