#include "engine/run/sampler.h"
#include "engine/core/error.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvrun {
void check_sampler(const SamplerOptions& o) {
	// each condition is written so that NaN fails
	const auto check = [](const char* name, double x, double lowest, double highest) {
		if (!(x >= lowest && x <= highest))
			fail(Code::Invalid, "{} is {}, expected {} to {}", name, x, lowest, highest);
	};
	check("temperature", o.temperature, 0, 1e6);
	check("top-p", o.top_p, 0, 1);
	check("min-p", o.min_p, 0, 1);
	check("repeat penalty", o.repeat_penalty, 0.01, 100);
	check("repeat window (tokens)", o.repeat_last, 0, 65536);
	check("presence penalty", o.presence_penalty, -100, 100);
	check("frequency penalty", o.frequency_penalty, -100, 100);
	check("top-n-sigma", o.top_n_sigma, -1, 1e6);
	check("typical-p", o.typical_p, 0, 1);
	check("XTC probability", o.xtc_probability, 0, 1);
	check("XTC threshold", o.xtc_threshold, 0, 1);
	check("range of dynamic temperature", o.dynatemp_range, 0, 1e6);
	check("exponent of dynamic temperature", o.dynatemp_exponent, 0, 100);
	check("DRY multiplier", o.dry.multiplier, 0, 100);
	check("DRY base", o.dry.base, 1, 100);
	check("Mirostat", o.mirostat.version, 0, 2);
	check("target of Mirostat", o.mirostat.target, 0, 1000);
	check("rate of Mirostat", o.mirostat.rate, 0, 1);
	check("target of adaptive-p", o.adaptive.target, -1, 1);
	check("decay of adaptive-p", o.adaptive.decay, 0, 0.99);
	if (std::ranges::any_of(o.dry.breakers, &std::string::empty))
		fail(Code::Invalid, "a DRY sequence breaker is empty");
	for (const auto& [token, x] : o.bias)
		if (std::isnan(x) || x == INFINITY)
			fail(Code::Invalid, "bias of token {} is {}, expected a finite number or -infinity", token, x);
}

Sampler::Sampler(const SamplerOptions& o, Dry::TokenText text)
    : options_((check_sampler(o), o)), random_(o.seed), dry_(o.dry, std::move(text)), mirostat_(o.mirostat),
      adaptive_(o.adaptive) {
	if (!mirostat_.on()) return;
	options_.top_k = 0, options_.top_p = options_.typical_p = 1, options_.min_p = 0;
	options_.top_n_sigma = options_.xtc_probability = options_.dynatemp_range = 0;
	adaptive_ = AdaptiveP({});
}

void Sampler::accept(uint32_t token) {
	dry_.accept(token);
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
	if (recent_.empty() && counts_.empty() && options_.bias.empty() && options_.never.empty() && !dry_.on())
		return logits;
	changed_.assign(logits.begin(), logits.end());
	penalise_recent();
	dry_.penalise(changed_);
	for (const auto& [t, n] : counts_)
		if (t < changed_.size() && std::isfinite(changed_[t]))
			changed_[t] = finite(changed_[t] - options_.presence_penalty - n * options_.frequency_penalty);
	for (const auto& [t, x] : options_.bias)
		if (t < changed_.size() && std::isfinite(changed_[t]))
			changed_[t] = x == -INFINITY ? x : finite(double(changed_[t]) + x);
	for (const uint32_t t : options_.never)
		if (t < changed_.size() && std::isfinite(changed_[t])) changed_[t] = -INFINITY;
	return changed_;
}

// max - n * sigma over the logits that are not -inf
static float sigma_bound(std::span<const float> logits, float max, double n) {
	double sum = 0, squares = 0;
	size_t count = 0;
	for (const float l : logits)
		if (l != -INFINITY) sum += double(l), ++count;
	const double mean = sum / double(count);
	for (const float l : logits)
		if (l != -INFINITY) squares += (double(l) - mean) * (double(l) - mean);
	return float(double(max) - n * std::sqrt(squares / double(count)));
}

// If top-k keeps all, top-p and min-p bound the kept logits from below, and only logits above that bound become
// candidates. Not behind another cut, which changes what is left to them.
std::optional<double> Sampler::gather(std::span<const float> logits) {
	if (mirostat_.on()) return gather_surprising(logits);
	const size_t k = options_.top_k;
	const bool sigma = options_.top_n_sigma > 0;
	float bound = -INFINITY;
	std::optional<double> all;
	if (sigma) bound = sigma_bound(logits, blocks_.max(), options_.top_n_sigma);
	if (k && k < logits.size()) {
		bound = std::max(bound, blocks_.bound(k + 1));
	} else if (!sigma && options_.typical_p == 1) {
		if (options_.top_p < 1) {
			const LogitBlocks::Mass mass = blocks_.mass(options_.top_p);
			bound = mass.bound, all = mass.sum;
		}
		if (options_.min_p > 0) bound = std::max(bound, float(double(blocks_.max()) + std::log(options_.min_p) - 1e-3));
		if (options_.min_keep > 1) bound = std::min(bound, blocks_.bound(options_.min_keep));
	}
	blocks_.at_least(bound, [&](size_t id, float logit) {
		if (logit != -INFINITY) candidates_.push_back({logit, uint32_t(id), 0});
	});
	return all;
}

double Sampler::gather_surprising(std::span<const float> logits) {
	const double temperature = options_.temperature;
	const float max = blocks_.max();
	double all = 0;
	for (const float l : logits) all += share_of(l, max, temperature);
	// Version 1 may take more than it looks at first: cut_surprising().
	const float bound = mirostat_.by_rank()
	                        ? blocks_.bound(Mirostat::kRanked)
	                        : float(double(max) + std::min(0., temperature * (std::log(all) + mirostat_.least_log())));
	blocks_.at_least(std::nextafter(bound, -INFINITY), [&](size_t id, float logit) {
		if (logit != -INFINITY) candidates_.push_back({logit, uint32_t(id), 0});
	});
	return all;
}

void Sampler::cut_surprising(double all) {
	auto& c = candidates_;
	const float max = blocks_.max();
	const auto log_probability = [&](const Candidate& x) {
		return (double(x.logit) - double(max)) / options_.temperature - std::log(all);
	};
	std::sort(c.begin(), c.end(), likelier);
	if (!mirostat_.by_rank()) {
		const auto rare = [&](const Candidate& x) { return log_probability(x) < mirostat_.least_log(); };
		c.erase(std::find_if(c.begin() + 1, c.end(), rare), c.end());
		return;
	}
	std::vector<double> logs;
	for (size_t i = 0; i < std::min(c.size(), Mirostat::kRanked); ++i) logs.push_back(log_probability(c[i]));
	const size_t k = mirostat_.ranks(logs, blocks_.size());
	if (k > c.size()) {
		c.clear();
		blocks_.at_least(blocks_.bound(k), [&](size_t id, float logit) {
			if (logit != -INFINITY) c.push_back({logit, uint32_t(id), 0});
		});
		std::sort(c.begin(), c.end(), likelier);
	}
	if (k < c.size()) c.resize(k);
}

// The resulting order of candidates_ depends on the logits alone, the most likely first.
void Sampler::cut(std::optional<double> all) {
	auto& c = candidates_;
	const SamplerOptions& o = options_;
	const bool typical = o.typical_p < 1, top_p = o.top_p<1, min_p = o.min_p> 0;
	const bool exclude = o.xtc_probability > 0 && random() < o.xtc_probability;
	const size_t k = o.top_k == 0 ? c.size() : std::min<size_t>(o.top_k, c.size());
	if (k < c.size()) {
		std::partial_sort(c.begin(), c.begin() + ptrdiff_t(k), c.end(), likelier);
		c.resize(k);
	} else if (typical || top_p || min_p || exclude) {
		std::sort(c.begin(), c.end(), likelier);
	} else {
		std::iter_swap(c.begin(), std::min_element(c.begin(), c.end(), likelier));
	}
	if (typical) keep_typical(c, o.typical_p, o.min_keep);
	if (top_p) keep_top_p(c, o.top_p, all, o.min_keep);
	if (min_p) keep_min_p(c, o.min_p, o.min_keep);
	if (exclude) exclude_top(c, o.xtc_threshold, o.min_keep);
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
uint32_t Sampler::needed() const {
	constexpr uint32_t most = KV_CANDIDATES / 4; // longer lists overflow more often
	if (!recent_.empty() || !counts_.empty() || !options_.bias.empty() || dry_.on()) return 0;
	if (options_.never.size() >= most) return 0;
	if (greedy()) return 1;
	if (options_.top_n_sigma > 0) return 0; // standard deviation of all
	return options_.top_k == 0 || options_.top_k + options_.never.size() >= most ? 0 : options_.top_k + 1;
}

uint32_t Sampler::wanted() const {
	const uint32_t n = needed();
	return n ? n + uint32_t(options_.never.size()) : 0;
}

uint32_t Sampler::sample(const RowLogits& logits) {
	if (!logits.all.empty()) return sample(logits.all);
	KV_ASSERT(wanted() > 0 && logits.top.size() >= wanted());
	candidates_.clear();
	for (const Logit& l : logits.top)
		if (!is_never(l.id)) candidates_.push_back({l.value, l.id, 0});
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
		if (!is_never(l.id) && filter.allows(l.id)) candidates_.push_back({l.value, l.id, 0});
	if (needed() == 0 || candidates_.size() < needed()) return {};
	if (!greedy()) return draw({});
	const Candidate best = *std::ranges::min_element(candidates_, likelier);
	return choose_only({best.logit, best.id, 1});
}

// Tests the most likely tokens first, because usually enough of them are allowed; otherwise it builds the mask of all
// tokens.
uint32_t Sampler::sample_allowed(std::span<const float> logits, const TokenFilter& filter) {
	const std::span<const float> x = scanned(logits);
	const size_t need = greedy() ? 1 : size_t(options_.top_k) + 1;
	if (greedy() || (options_.top_k > 0 && options_.top_n_sigma <= 0)) {
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

// 53 random bits; std::uniform_real_distribution differs between standard libraries
double Sampler::random() { return double(random_() >> 11) * 0x1p-53; }

uint32_t Sampler::draw(std::optional<double> all) {
	if (mirostat_.on())
		cut_surprising(*all);
	else
		cut(all);
	double temperature = options_.temperature;
	if (options_.dynatemp_range > 0)
		temperature =
		    std::max(kGreedyTemperature, dynamic_temperature(candidates_, temperature, options_.dynatemp_range,
		                                                     options_.dynatemp_exponent));
	total_ = 0;
	for (Candidate& c : candidates_) total_ += c.share = share_of(c.logit, candidates_[0].logit, temperature);
	if (adaptive_.on()) total_ = adaptive_.reshape(candidates_, total_);
	const double at = random() * total_;
	double sum = 0;
	const auto chosen = std::ranges::find_if(candidates_, [&](const Candidate& c) { return (sum += c.share) > at; });
	const Candidate& c =
	    chosen == candidates_.end() ? candidates_[0] : *chosen; // rounding put `at` beyond the last one
	mirostat_.observe(c.share / total_);
	if (adaptive_.on()) adaptive_.observe(size_t(&c - candidates_.data()));
	return c.id;
}

} // namespace kvrun
