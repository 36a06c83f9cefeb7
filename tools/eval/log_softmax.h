// Distributions of the next token, and the KL divergence between them.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace kvrun {

// Writes log-probabilities of every token (vocab); returns the most likely token. Throws Error{Device} if logits are
// not finite.
uint32_t log_softmax(std::span<const float> logits, std::span<float> out, const std::string& policy);
// KL divergence in nats, from log-probabilities.
double kl_divergence(std::span<const float> p, std::span<const float> q);

} // namespace kvrun
