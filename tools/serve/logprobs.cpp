// Log probabilities of an answer's tokens, from the logits before sampling.
#include "tools/serve/logprobs.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvrun::serve {

constexpr double kImpossible = -9999; // stands for -infinity, which JSON lacks

void Logprobs::look(std::span<const float> logits) {
	logits_.assign(logits.begin(), logits.end());
	const double top = *std::ranges::max_element(logits_);
	double sum = 0;
	for (const float x : logits_) sum += std::exp(double(x) - top);
	log_sum_ = top + std::log(sum);
}

Json Logprobs::entry(const Model& model, uint32_t token) const {
	const std::string text = model.token_text(token, /*special=*/true);
	Json bytes = Json::array();
	for (const char c : text) bytes.push_back(uint8_t(c));
	const double p = double(logits_[token]) - log_sum_;
	return {{"id", token}, {"token", text}, {"logprob", std::isfinite(p) ? p : kImpossible}, {"bytes", bytes}};
}

Json Logprobs::chosen(const Model& model, uint32_t token) const {
	std::vector<uint32_t> ids(logits_.size());
	std::iota(ids.begin(), ids.end(), 0u);
	const size_t n = std::min<size_t>(alternatives_, ids.size());
	const auto likelier = [&](uint32_t a, uint32_t b) {
		return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
	};
	std::ranges::partial_sort(ids, ids.begin() + ptrdiff_t(n), likelier);
	Json out = entry(model, token);
	out["top_logprobs"] = Json::array();
	for (size_t i = 0; i < n; ++i) out["top_logprobs"].push_back(entry(model, ids[i]));
	return out;
}

} // namespace kvrun::serve
