#include "engine/run/dry.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun {

Dry::Dry(DryOptions options, TokenText text) : options_(std::move(options)), text_(std::move(text)) {
	for (const std::string& b : options_.breakers) most_before_ = std::max(most_before_, b.size() - 1);
}

// before: text in front of it. A breaker may begin there, but ends in `text`.
bool Dry::breaks(const std::string& before, const std::string& text) const {
	const std::string all = before + text;
	return std::ranges::any_of(options_.breakers, [&](const std::string& b) {
		return all.find(b, before.size() - std::min(before.size(), b.size() - 1)) != std::string::npos;
	});
}

void Dry::accept(uint32_t token) {
	if (!on()) return;
	const std::string text = text_ ? text_(token) : "";
	unbroken_ = breaks(before_, text) ? 0 : unbroken_ + 1;
	before_ += text;
	before_.erase(0, before_.size() - std::min(before_.size(), most_before_));
	tokens_.push_back(token);
	if (tokens_.size() / 2 >= options_.last) tokens_.erase(tokens_.begin(), tokens_.end() - ptrdiff_t(options_.last));
}

// repeats_[k]: how many of the newest tokens also stand k tokens earlier, by Z-algorithm on the reversed text: linear
// in the number of tokens.
void Dry::penalise(std::span<float> logits) {
	const size_t n = std::min<size_t>(tokens_.size(), options_.last);
	if (!on() || n <= options_.allowed || unbroken_ < options_.allowed) return;
	const auto newest = [&](size_t i) { return tokens_[tokens_.size() - 1 - i]; };
	repeats_.assign(n, 0);
	longest_.clear();
	for (size_t k = 1, left = 0, right = 0; k < n; ++k) { // tokens [left, right) equal the first right - left
		size_t same = k < right ? std::min<size_t>(right - k, repeats_[k - left]) : 0;
		while (k + same < n && newest(same) == newest(k + same)) ++same;
		repeats_[k] = uint32_t(same);
		if (k + same > right) left = k, right = k + same;
		const uint32_t length = std::min(repeats_[k], unbroken_);
		if (length < options_.allowed) continue;
		uint32_t& longest = longest_.try_emplace(newest(k - 1), length).first->second;
		longest = std::max(longest, length);
	}
	for (const auto& [token, length] : longest_) {
		if (token >= logits.size() || !std::isfinite(logits[token])) continue;
		if (text_ && breaks({}, text_(token))) continue;
		constexpr double most = std::numeric_limits<float>::max();
		const double penalty = options_.multiplier * std::pow(options_.base, double(length - options_.allowed));
		logits[token] = float(std::clamp(double(logits[token]) - std::min(penalty, most), -most, most));
	}
}

} // namespace kvrun
