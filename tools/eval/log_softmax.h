// Distributions of the next token, and how far one is from another.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace kvrun {

// log-probabilities of every token (vocab), and which is largest. Throws Error{Device} where logits are not finite.
uint32_t log_softmax(std::span<const float> logits, std::span<float> out, const std::string& policy);
// In nats, of log-probabilities.
double kl_divergence(std::span<const float> p, std::span<const float> q);

} // namespace kvrun
