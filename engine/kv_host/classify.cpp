// One flush: the tier of each token; and which rows feed the score. Pure functions.
#include "engine/kv_host/classify.h"
#include "engine/core/error.h"
#include "engine/core/splitmix64.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvrun {

uint64_t round_share(double share, uint64_t n) { return uint64_t(std::nearbyint(share * double(n))); }

Flush classify(const Select& s, uint32_t n, uint32_t want, std::span<const double> score) {
	Flush out;
	if (s.rank == Rank::None || (s.rank != Rank::LogWindow && want == 0)) {
		out.regular.resize(n);
		std::iota(out.regular.begin(), out.regular.end(), 0u);
		return out;
	}
	if (s.rank == Rank::LogWindow) { // LogQuant Algorithm 1: the 1st, 3rd, 5th, ... candidate stays
		for (uint32_t i = 0; i < n; ++i) (i % 2 ? out.regular : out.salient).push_back(i);
		return out;
	}
	KV_ASSERT(score.size() == n && want <= n);
	std::vector<Ranked> order(n);
	for (uint32_t i = 0; i < n; ++i) order[i] = {score[i], i};
	std::nth_element(order.begin(), order.begin() + (want - 1), order.end(), ranks_above);
	const Ranked last = order[want - 1]; // the lowest-ranked one that stays
	out.salient.reserve(want), out.regular.reserve(n - want);
	for (uint32_t i = 0; i < n; ++i) (ranks_above(last, {score[i], i}) ? out.regular : out.salient).push_back(i);
	return out;
}

uint32_t how_many_salient(const Select& s, uint32_t n, uint64_t n_judged) {
	switch (s.rank) {
	case Rank::None: return 0;
	case Rank::LogWindow: return (n + 1) / 2;
	default: break;
	}
	uint64_t want = s.ratio > 0 ? round_share(s.ratio, n_judged) : s.budget;
	if (s.budget) want = std::min<uint64_t>(want, s.budget);
	return uint32_t(std::min<uint64_t>(want, n));
}

// A number for each pair of seed and counter.
static uint64_t mix(uint64_t seed, uint64_t i) { return splitmix64(seed + (i + 1) * kSplitmixStep); }

struct ProbeShares {
	double recent, random;
};
// The length of a key is the same for every row, so one row is enough: any share above 0 selects at least the newest
// row.
static ProbeShares probe_shares(const Select& s) {
	if (s.rank == Rank::KeyLength) return {.recent = 1e-12, .random = 0};
	return {s.probe_recent, s.probe_random};
}

std::vector<uint32_t> probe_rows(const Select& s, uint32_t n, uint64_t seed) {
	if (!ranks_by_score(s.rank) || n == 0) return {};
	const ProbeShares share = probe_shares(s);
	const uint32_t n_random_wanted = uint32_t(round_share(share.random, n));
	uint32_t n_recent = uint32_t(std::min<uint64_t>(round_share(share.recent, n), n));
	if (share.recent > 0 || n_random_wanted == 0) n_recent = std::max(n_recent, 1u);
	const uint32_t rest = n - n_recent, n_random = std::min(n_random_wanted, rest);
	std::vector<uint32_t> rows(rest);
	std::iota(rows.begin(), rows.end(), 0u);
	for (uint32_t i = 0; i < n_random; ++i) // the first part of a shuffle: drawn without replacement
		std::swap(rows[i], rows[i + mix(seed, i) % (rest - i)]);
	rows.resize(n_random);
	std::sort(rows.begin(), rows.end());
	for (uint32_t t = rest; t < n; ++t) rows.push_back(t);
	return rows;
}

bool ranks_every_row(const Select& s) {
	if (!ranks_by_score(s.rank)) return false;
	const ProbeShares share = probe_shares(s);
	return share.recent + share.random >= 1;
}

bool is_probe(const Select& s, uint32_t index, uint64_t position, uint64_t seed) {
	if (!ranks_by_score(s.rank)) return false;
	if (ranks_every_row(s)) return true;
	const ProbeShares share = probe_shares(s);
	const uint32_t window = s.recent_keep + s.flush;
	const uint64_t n_recent = std::max<uint64_t>(round_share(share.recent, s.flush), share.recent > 0 ? 1 : 0);
	if (index + n_recent >= window) return true;
	return double(mix(~seed, position) >> 11) * 0x1p-53 < share.random;
}

void normalise_scores(const Select& s, std::span<float> sums, uint32_t n, std::span<const uint32_t> rows) {
	if (!takes_mean(s.rank) || n == 0) return;
	KV_ASSERT(sums.size() % n == 0);
	std::vector<float> seen_by(n);
	for (uint32_t t = 0; t < n; ++t)
		seen_by[t] = float(std::max<ptrdiff_t>(1, rows.end() - std::lower_bound(rows.begin(), rows.end(), t)));
	for (size_t i = 0; i < sums.size(); ++i) sums[i] /= seen_by[i % n];
}

} // namespace kvrun
