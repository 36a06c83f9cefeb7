// The most likely token of one row of logits; where the device can find it, only a few logits are read.
#pragma once
#include "engine/run/layer_runner.h"
#include "engine/run/logit_blocks.h"

namespace kvrun {

class TopToken {
 public:
	explicit TopToken(LayerRunner& r) : runner_(r), lists_(r.backend().info().lists_candidates) {}
	void read();                     // enqueues what get() needs, after LayerRunner::logits() of one row
	uint32_t get();                  // call after the next wait(); waits again if the device did not find it
	std::span<const float> logits(); // (vocab) all of that row; waits if they have not been read

 private:
	LayerRunner& runner_;
	bool lists_; // the device finds the largest logits
	CandidateLists list_;
	LogitBlocks blocks_;
	std::vector<float> logits_; // empty: not read
};

} // namespace kvrun
