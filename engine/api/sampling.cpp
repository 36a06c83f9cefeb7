#include "engine/api/sampling.h"
#include "engine/api/status.h"

namespace kvrun::api {

SamplerOptions sampler_options(const kvrun_generate_options& o) {
	SamplerOptions s;
	s.temperature = o.temperature, s.top_k = o.top_k, s.top_p = o.top_p, s.min_p = o.min_p, s.seed = o.seed;
	s.repeat_penalty = o.repeat_penalty, s.repeat_last = o.repeat_last_n;
	s.presence_penalty = o.presence_penalty, s.frequency_penalty = o.frequency_penalty;
	s.top_n_sigma = o.top_n_sigma, s.typical_p = o.typical_p;
	s.xtc_probability = o.xtc_probability, s.xtc_threshold = o.xtc_threshold;
	s.dynatemp_range = o.dynatemp_range, s.dynatemp_exponent = o.dynatemp_exponent;
	s.dry.multiplier = o.dry_multiplier, s.dry.base = o.dry_base;
	s.dry.allowed = o.dry_allowed_length, s.dry.last = o.dry_penalty_last_n;
	s.mirostat = {o.mirostat, o.mirostat_tau, o.mirostat_eta};
	s.adaptive = {o.adaptive_target, o.adaptive_decay};
	s.min_keep = o.min_keep;
	if (o.dry_breakers) s.dry.breakers.clear();
	for (size_t i = 0; i < o.n_dry_breakers; ++i) {
		check_pointer(o.dry_breakers, "dry_breakers");
		check_pointer(o.dry_breakers[i], "a DRY sequence breaker");
		s.dry.breakers.emplace_back(o.dry_breakers[i]);
	}
	return s;
}

} // namespace kvrun::api
