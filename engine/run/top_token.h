// The most likely token of rows of logits; where the device can find it, only a few logits are read.
#pragma once
#include "engine/run/layer_runner.h"
#include "engine/run/logit_blocks.h"

namespace kvrun {

class TopToken {
 public:
	explicit TopToken(LayerRunner& r) : runner_(r), lists_(r.backend().info().lists_candidates) {}
	// Enqueues what get() needs, after LayerRunner::logits() of rows up to first + n - 1.
	void read(uint32_t first = 0, uint32_t n = 1);
	// Of row first + i; call after the next wait(). Waits again if the device did not find it.
	uint32_t get(uint32_t i = 0);
	// (vocab) all of a row; waits if they have not been read. Valid until the next call of any function.
	std::span<const float> logits(uint32_t row = 0);

 private:
	LayerRunner& runner_;
	bool lists_; // the device finds the largest logits
	CandidateLists list_;
	LogitBlocks blocks_;
	uint32_t first_ = 0, n_ = 0;
	std::vector<float> logits_, one_; // (n, vocab) where the device does not list them; (vocab)
};

} // namespace kvrun
