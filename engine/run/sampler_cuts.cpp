#include "engine/run/sampler_cuts.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvrun {
namespace {

double sum_of_shares(const std::vector<Candidate>& c) {
	double sum = 0;
	for (const Candidate& x : c) sum += share_of(x.logit, c[0].logit, 1);
	return sum;
}

// -sum p log p, in nats. With p = exp(d) / sum, where d = logit - max: -log p = log sum - d.
double entropy_of(const std::vector<Candidate>& c, double sum) {
	double entropy = 0;
	for (const Candidate& x : c) {
		const double d = double(x.logit) - double(c[0].logit), p = std::exp(d) / sum;
		if (p > 0) entropy += p * (std::log(sum) - d);
	}
	return entropy;
}

} // namespace

double share_of(float logit, float max, double temperature) {
	return logit == max ? 1 : std::exp((double(logit) - double(max)) / temperature);
}

void keep_typical(std::vector<Candidate>& c, double p, size_t least) {
	const double sum = sum_of_shares(c), entropy = entropy_of(c, sum);
	std::vector<double> away(c.size());
	for (size_t i = 0; i < c.size(); ++i)
		away[i] = std::abs(std::log(sum) - (double(c[i].logit) - double(c[0].logit)) - entropy);
	std::vector<size_t> order(c.size());
	std::iota(order.begin(), order.end(), size_t(0));
	std::ranges::stable_sort(order, {}, [&](size_t i) { return away[i]; });
	std::vector<bool> kept(c.size());
	double have = 0;
	size_t taken = 0;
	for (const size_t i : order) {
		kept[i] = true;
		have += share_of(c[i].logit, c[0].logit, 1);
		if (++taken >= least && have > p * sum) break;
	}
	size_t n = 0;
	for (size_t i = 0; i < c.size(); ++i)
		if (kept[i]) c[n++] = c[i];
	c.resize(n);
}

void keep_top_p(std::vector<Candidate>& c, double p, std::optional<double> all, size_t least) {
	const double of_all = all ? *all : sum_of_shares(c);
	double have = 0;
	size_t n = 0;
	least = std::clamp<size_t>(least, 1, c.size());
	while (n < least || (n < c.size() && have < p * of_all)) have += share_of(c[n++].logit, c[0].logit, 1);
	c.resize(n);
}

void keep_min_p(std::vector<Candidate>& c, double p, size_t least) {
	const float max = c[0].logit;
	const auto rare = [&](const Candidate& x) { return share_of(x.logit, max, 1) < p; };
	c.erase(std::find_if(c.begin() + ptrdiff_t(std::min(least, c.size())), c.end(), rare), c.end());
}

void exclude_top(std::vector<Candidate>& c, double threshold, size_t least) {
	const double share = threshold * sum_of_shares(c);
	size_t n = 0; // at least this probable
	while (n < c.size() && share_of(c[n].logit, c[0].logit, 1) >= share) ++n;
	if (n > 1 && c.size() - (n - 1) >= least) c.erase(c.begin(), c.begin() + ptrdiff_t(n - 1));
}

double dynamic_temperature(const std::vector<Candidate>& c, double temperature, double range, double exponent) {
	if (c.size() < 2) return temperature;
	const double low = std::max(0.0, temperature - range), high = temperature + range;
	const double part = std::clamp(entropy_of(c, sum_of_shares(c)) / std::log(double(c.size())), 0.0, 1.0);
	return low + (high - low) * std::pow(part, exponent);
}

} // namespace kvrun
