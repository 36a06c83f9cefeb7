// Log probabilities of an answer's tokens, from the logits before sampling.
#pragma once
#include "tools/serve/model.h"
#include <span>

namespace kvrun::serve {

constexpr uint32_t kMostLogprobs = 20; // alternatives a request may ask for, as in OpenAI's API

class Logprobs {
 public:
	explicit Logprobs(uint32_t alternatives) : alternatives_(alternatives) {}
	void look(std::span<const float> logits); // (vocab) call before a token is chosen
	// {"id", "token", "logprob", "bytes", "top_logprobs": [{"id", "token", "logprob", "bytes"}]} of the chosen token.
	Json chosen(const Model&, uint32_t token) const;

 private:
	Json entry(const Model&, uint32_t token) const;
	const uint32_t alternatives_;
	std::vector<float> logits_;
	double log_sum_ = 0; // log of the sum of exp(logits)
};

} // namespace kvrun::serve
