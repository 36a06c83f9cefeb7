// Chooses the next token from logits: penalties, bias, top-k, top-p, min-p, temperature; same seed, same tokens.
#include "engine/run/sampler.h"
#include "engine/core/error.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvrun {
namespace {

using Candidate = Sampler::Candidate;

bool likelier(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

double share_of(float logit, float max, double temperature) {
	return logit == max ? 1 : std::exp((double(logit) - double(max)) / temperature);
}

} // namespace

void check_sampler(const SamplerOptions& o) {
	// each condition is written so that NaN fails
	if (!(o.temperature >= 0 && o.temperature <= 1e6))
		fail(Code::Invalid, "temperature is {}, expected 0 to 1e6", o.temperature);
	if (!(o.top_p >= 0 && o.top_p <= 1)) fail(Code::Invalid, "top-p is {}, expected 0 to 1", o.top_p);
	if (!(o.min_p >= 0 && o.min_p <= 1)) fail(Code::Invalid, "min-p is {}, expected 0 to 1", o.min_p);
	if (!(o.repeat_penalty >= 0.01 && o.repeat_penalty <= 100))
		fail(Code::Invalid, "repeat penalty is {}, expected 0.01 to 100", o.repeat_penalty);
	if (o.repeat_last > 65536) fail(Code::Invalid, "repeat window is {} tokens, expected 0 to 65536", o.repeat_last);
	for (const auto& [name, x] :
	     {std::pair("presence penalty", o.presence_penalty), std::pair("frequency penalty", o.frequency_penalty)})
		if (!(std::abs(x) <= 100)) fail(Code::Invalid, "{} is {}, expected -100 to 100", name, x);
	for (const auto& [token, x] : o.bias)
		if (std::isnan(x) || x == INFINITY)
			fail(Code::Invalid, "bias of token {} is {}, expected a finite number or -infinity", token, x);
}

Sampler::Sampler(const SamplerOptions& o) : options_(o), random_(o.seed) { check_sampler(o); }

void Sampler::accept(uint32_t token) {
	if (options_.repeat_penalty == 1 || options_.repeat_last == 0) return;
	if (recent_.size() < options_.repeat_last) {
		recent_.push_back(token);
	} else {
		recent_[recent_at_] = token;
		recent_at_ = (recent_at_ + 1) % recent_.size();
	}
}

void Sampler::count(uint32_t token) {
	if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++counts_[token];
}

static float finite(double x) { // keeps a finite logit finite
	constexpr double most = std::numeric_limits<float>::max();
	return float(std::clamp(x, -most, most));
}

// A token that occurred several times is penalised once.
void Sampler::penalise_recent() {
	std::vector<uint32_t> tokens(recent_);
	std::sort(tokens.begin(), tokens.end());
	tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
	for (const uint32_t t : tokens) {
		if (t >= changed_.size()) continue;
		float& l = changed_[t];
		if (!std::isfinite(l)) continue;
		l = finite(l > 0 ? l / options_.repeat_penalty : l * options_.repeat_penalty);
	}
}

// Additions follow divisions, so that a bias has the same effect whatever the other options.
std::span<const float> Sampler::changed(std::span<const float> logits) {
	if (recent_.empty() && counts_.empty() && options_.bias.empty()) return logits;
	changed_.assign(logits.begin(), logits.end());
	penalise_recent();
	for (const auto& [t, n] : counts_)
		if (t < changed_.size() && std::isfinite(changed_[t]))
			changed_[t] = finite(changed_[t] - options_.presence_penalty - n * options_.frequency_penalty);
	for (const auto& [t, x] : options_.bias)
		if (t < changed_.size() && std::isfinite(changed_[t]))
			changed_[t] = x == -INFINITY ? x : finite(double(changed_[t]) + x);
	return changed_;
}

// If top-k keeps all, top-p and min-p bound the kept logits from below, and only logits above that bound become
// candidates.
std::optional<double> Sampler::gather(std::span<const float> logits) {
	const size_t k = options_.top_k;
	float bound = -INFINITY;
	std::optional<double> all;
	if (k && k < logits.size()) {
		bound = blocks_.bound(k + 1);
	} else {
		if (options_.top_p < 1) {
			const LogitBlocks::Mass mass = blocks_.mass(options_.top_p);
			bound = mass.bound, all = mass.sum;
		}
		if (options_.min_p > 0) bound = std::max(bound, float(double(blocks_.max()) + std::log(options_.min_p) - 1e-3));
	}
	blocks_.at_least(bound, [&](size_t id, float logit) {
		if (logit != -INFINITY) candidates_.push_back({logit, uint32_t(id), 0});
	});
	return all;
}

// Applies top-k, top-p and min-p. The resulting order of candidates_ depends on the logits alone, the most likely
// first.
void Sampler::cut(std::optional<double> all) {
	auto& c = candidates_;
	const size_t k = options_.top_k == 0 ? c.size() : std::min<size_t>(options_.top_k, c.size());
	if (k < c.size()) {
		std::partial_sort(c.begin(), c.begin() + ptrdiff_t(k), c.end(), likelier);
		c.resize(k);
	} else if (options_.top_p < 1 || options_.min_p > 0) {
		std::sort(c.begin(), c.end(), likelier);
	} else {
		std::iter_swap(c.begin(), std::min_element(c.begin(), c.end(), likelier));
	}
	const float max = c[0].logit;
	if (options_.top_p < 1) { // probabilities at temperature 1, as in other programs
		double have = 0, of_all = all.value_or(0);
		if (!all)
			for (const Candidate& x : c) of_all += share_of(x.logit, max, 1);
		size_t n = 0;
		while (n == 0 || (n < c.size() && have < options_.top_p * of_all)) have += share_of(c[n++].logit, max, 1);
		c.resize(n);
	}
	if (options_.min_p > 0) {
		const auto rare = [&](const Candidate& x) { return share_of(x.logit, max, 1) < options_.min_p; };
		c.erase(std::find_if(c.begin(), c.end(), rare), c.end());
	}
}

std::span<const float> Sampler::scanned(std::span<const float> logits) {
	const std::span<const float> x = changed(logits);
	blocks_.scan(x);
	if (!blocks_.ordered()) {
		const auto bad = std::ranges::find_if(x, [](float l) { return std::isnan(l) || l == INFINITY; });
		fail(Code::Device, "logit of token {} is {}; KVRUN_CHECK=1 finds the operation that made it", bad - x.begin(),
		     std::isnan(*bad) ? "not a number" : "infinite");
	}
	if (blocks_.max() == -INFINITY)
		fail(Code::Device, "none of {} logits is above -inf; KVRUN_CHECK=1 finds the operation at fault", x.size());
	return x;
}

uint32_t Sampler::sample(std::span<const float> logits) {
	candidates_.clear();
	const std::span<const float> x = scanned(logits);
	if (greedy()) {
		const size_t best = blocks_.first_max();
		return choose_only({x[best], uint32_t(best), 1});
	}
	return draw(gather(x));
}

// One more than top-k, as in gather(): cut() then sorts them and decides ties by id.
uint32_t Sampler::wanted() const {
	constexpr uint32_t most = KV_CANDIDATES / 4; // longer lists overflow more often
	if (!recent_.empty() || !counts_.empty() || !options_.bias.empty()) return 0;
	if (greedy()) return 1;
	return options_.top_k == 0 || options_.top_k >= most ? 0 : options_.top_k + 1;
}

uint32_t Sampler::sample(const RowLogits& logits) {
	if (!logits.all.empty()) return sample(logits.all);
	KV_ASSERT(wanted() > 0 && logits.top.size() >= wanted());
	candidates_.clear();
	for (const Logit& l : logits.top) candidates_.push_back({l.value, l.id, 0});
	if (!greedy()) return draw({});
	const Candidate best = *std::ranges::min_element(candidates_, likelier);
	return choose_only({best.logit, best.id, 1});
}

uint32_t Sampler::wanted_to_filter() const {
	const uint32_t n = wanted();
	return n ? std::max(n, std::min<uint32_t>(4 * n + 28, KV_CANDIDATES / 4)) : 0;
}

std::optional<uint32_t> Sampler::sample(const RowLogits& logits, const TokenFilter& filter) {
	if (!logits.all.empty()) return sample_allowed(logits.all, filter);
	candidates_.clear();
	for (const Logit& l : logits.top)
		if (filter.allows(l.id)) candidates_.push_back({l.value, l.id, 0});
	if (wanted() == 0 || candidates_.size() < wanted()) return {};
	if (!greedy()) return draw({});
	const Candidate best = *std::ranges::min_element(candidates_, likelier);
	return choose_only({best.logit, best.id, 1});
}

// Tests the most likely tokens first, because usually enough of them are allowed; otherwise it builds the mask of all
// tokens.
uint32_t Sampler::sample_allowed(std::span<const float> logits, const TokenFilter& filter) {
	const std::span<const float> x = scanned(logits);
	const size_t need = greedy() ? 1 : size_t(options_.top_k) + 1;
	if (greedy() || options_.top_k > 0) {
		for (size_t m = 4 * need + 28; m <= std::min<size_t>(x.size() / 128, 1024); m *= 4) {
			const float bound = blocks_.bound(m);
			candidates_.clear();
			blocks_.at_least(bound, [&](size_t id, float logit) {
				if (logit != -INFINITY && filter.allows(uint32_t(id))) candidates_.push_back({logit, uint32_t(id), 0});
			});
			if (candidates_.size() < need) continue;
			if (!greedy()) return draw({});
			const Candidate best = *std::ranges::min_element(candidates_, likelier);
			return choose_only({best.logit, best.id, 1});
		}
	}
	const std::span<const uint64_t> allowed = filter.allowed();
	filtered_.assign(x.size(), -INFINITY);
	for (size_t word = 0; word < allowed.size(); ++word)
		for (uint64_t bits = allowed[word]; bits; bits &= bits - 1) {
			const size_t t = word * 64 + size_t(std::countr_zero(bits));
			if (t < x.size()) filtered_[t] = x[t];
		}
	candidates_.clear();
	blocks_.scan(filtered_);
	if (!(blocks_.max() > -INFINITY))
		fail(Code::Unsupported, "the vocabulary has no token with which the answer could go on as its grammar asks");
	if (greedy()) {
		const size_t best = blocks_.first_max();
		return choose_only({filtered_[best], uint32_t(best), 1});
	}
	return draw(gather(filtered_));
}

uint32_t Sampler::choose_only(Candidate c) {
	candidates_.assign(1, c);
	total_ = 1;
	return c.id;
}

uint32_t Sampler::draw(std::optional<double> all) {
	cut(all);
	total_ = 0;
	for (Candidate& c : candidates_) total_ += c.share = share_of(c.logit, candidates_[0].logit, options_.temperature);
	// 53 random bits; std::uniform_real_distribution differs between standard libraries
	const double at = double(random_() >> 11) * 0x1p-53 * total_;
	double sum = 0;
	for (const Candidate& c : candidates_)
		if ((sum += c.share) > at) return c.id;
	return candidates_[0].id; // rounding put `at` beyond the last one
}

} // namespace kvrun
