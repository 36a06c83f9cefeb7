// Token sequences of stages, the same on every device.
#pragma once
#include "engine/run/session.h"
#include <vector>

namespace kvrun::comparison {

// Drawn from the vocabulary with a fixed seed.
std::vector<uint32_t> some_tokens(const Engine&, size_t n);
// The beginning of the synthetic text, at most n tokens, with BOS if the model has one.
std::vector<uint32_t> text_tokens(const Engine&, size_t n);

struct Step { // of greedy decoding
	uint32_t token;
	float top, margin; // largest logit, and its distance to the second one
	float spread;      // standard deviation of the logits
};
// n greedy steps after a prompt. hash: of the bits of all logits.
std::vector<Step> greedy(Session&, std::span<const uint32_t> prompt, uint32_t n, uint64_t& hash);

} // namespace kvrun::comparison
