// How the tokens of an answer are chosen: the part that kvrun run, chat, serve and the window have in common.
#pragma once
#include "engine/kvrun.h"
#include <algorithm>
#include <cstdint>

namespace kvrun {

struct Sampling { // as in kvrun_generate_options
	double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1;
	int64_t top_k = 40, repeat_last = 64;

	kvrun_generate_options options(uint64_t seed) const {
		kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
		o.temperature = temperature, o.top_p = top_p, o.min_p = min_p, o.repeat_penalty = repeat_penalty;
		o.top_k = uint32_t(std::clamp<int64_t>(top_k, 0, UINT32_MAX));
		o.repeat_last_n = uint32_t(repeat_last);
		o.seed = seed;
		return o;
	}
};

} // namespace kvrun
