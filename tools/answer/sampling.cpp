#include "tools/answer/sampling.h"
#include <algorithm>

namespace kvrun {

constexpr uint32_t kMostRepeatLast = 65536; // as many as the engine considers

kvrun_generate_options Sampling::options(uint64_t seed, std::vector<const char*>& breakers) const {
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.seed = seed;
	o.temperature = temperature, o.top_p = top_p, o.min_p = min_p, o.repeat_penalty = repeat_penalty;
	o.presence_penalty = presence_penalty, o.frequency_penalty = frequency_penalty;
	o.top_k = uint32_t(std::max<int64_t>(top_k, 0));
	o.repeat_last_n = repeat_last < 0 ? kMostRepeatLast : uint32_t(repeat_last);
	o.top_n_sigma = top_n_sigma, o.typical_p = typical_p;
	o.xtc_probability = xtc_probability, o.xtc_threshold = xtc_threshold;
	o.dynatemp_range = dynatemp_range, o.dynatemp_exponent = dynatemp_exponent;
	o.dry_multiplier = dry_multiplier, o.dry_base = dry_base;
	o.dry_allowed_length = uint32_t(dry_allowed_length);
	o.dry_penalty_last_n = dry_last < 0 ? UINT32_MAX : uint32_t(dry_last);
	o.mirostat = uint32_t(mirostat), o.mirostat_tau = mirostat_tau, o.mirostat_eta = mirostat_eta;
	o.adaptive_target = adaptive_target, o.adaptive_decay = adaptive_decay;
	o.min_keep = uint32_t(min_keep);
	breakers.clear();
	for (const std::string& b : dry_breakers) breakers.push_back(b.c_str());
	breakers.push_back(nullptr); // a pointer to none is not null
	o.dry_breakers = breakers.data(), o.n_dry_breakers = dry_breakers.size();
	return o;
}

std::span<const SamplingOption> sampling_options() {
	using S = Sampling;
	static constexpr double kMost = UINT32_MAX;
	static const SamplingOption all[] = {
	    {"--temp,--temperature", "temperature", &S::temperature, 0, 1e6, "sampling temperature; 0 is greedy [0.8]"},
	    {"--top-k", "top_k", &S::top_k, 0, kMost, "keep this many of the most likely tokens; 0 or -1: all [40]",
	     /*also_minus_one=*/true},
	    {"--top-p", "top_p", &S::top_p, 0, 1,
	     "keep the most likely tokens whose probabilities sum to this (nucleus sampling); 1: all [0.95]"},
	    {"--min-p", "min_p", &S::min_p, 0, 1,
	     "keep tokens at least this probable relative to the most likely one; 0: all [0.05]"},
	    {"--repeat-penalty", "repeat_penalty", &S::repeat_penalty, 0.01, 100,
	     "penalty factor for the last --repeat-last-n tokens; 1: off [1]"},
	    {"--repeat-last-n", "repeat_last_n", &S::repeat_last, 0, kMostRepeatLast,
	     "number of last tokens --repeat-penalty considers; -1: all of the context [64]", /*also_minus_one=*/true},
	    {"--presence-penalty", "presence_penalty", &S::presence_penalty, -2, 2,
	     "subtracted from the logits of tokens that are in the answer; 0: off [0]"},
	    {"--frequency-penalty", "frequency_penalty", &S::frequency_penalty, -2, 2,
	     "subtracted from the logits of tokens for each time they are in the answer; 0: off [0]"},
	    {"--top-nsigma,--top-n-sigma", "top_n_sigma", &S::top_n_sigma, -1, 1000,
	     "keep logits within this many standard deviations of the largest; 0 or less: all [0]"},
	    {"--typical,--typical-p", "typical_p", &S::typical_p, 0, 1,
	     "keep the tokens of most typical surprise whose probabilities sum to this; 1: all [1]"},
	    {"--xtc-probability", "xtc_probability", &S::xtc_probability, 0, 1,
	     "at how many tokens XTC excludes the top choices: all tokens above --xtc-threshold but the least likely [0]"},
	    {"--xtc-threshold", "xtc_threshold", &S::xtc_threshold, 0, 1,
	     "probability from which on a token is a top choice; above 0.5: off [0.1]"},
	    {"--min-keep", "min_keep", &S::min_keep, 0, kMost,
	     "top-p, min-p, typical-p and XTC each leave at least this many tokens; 0: one [0]"},
	    {"--dynatemp-range", "dynatemp_range", &S::dynatemp_range, 0, 1e6,
	     "the temperature is up to this much higher where many tokens are likely, and lower where few are; 0: off [0]"},
	    {"--dynatemp-exp", "dynatemp_exponent", &S::dynatemp_exponent, 0, 100,
	     "exponent of the entropy, of which that depends [1]"},
	    {"--dry-multiplier", "dry_multiplier", &S::dry_multiplier, 0, 100,
	     "DRY: the logit of a token that would lengthen a repetition of n tokens falls by multiplier * base ^ (n - "
	     "allowed length); 0: off, usual: 0.8 [0]"},
	    {"--dry-base", "dry_base", &S::dry_base, 1, 100, "base of DRY's penalty [1.75]"},
	    {"--dry-allowed-length", "dry_allowed_length", &S::dry_allowed_length, 0, kMost,
	     "tokens that may repeat without DRY's penalty [2]"},
	    {"--dry-penalty-last-n", "dry_penalty_last_n", &S::dry_last, -1, kMost,
	     "number of last tokens in which DRY looks for repetitions; -1: all, 0: off [-1]"},
	    {"--mirostat", "mirostat", &S::mirostat, 0, 2,
	     "version of Mirostat, which replaces top-k, top-p, min-p, typical-p, top-n-sigma, XTC and dynamic "
	     "temperature: 1 or 2; 0: off [0]"},
	    {"--mirostat-ent", "mirostat_tau", &S::mirostat_tau, 0, 1000,
	     "Mirostat: mean surprise of the tokens of an answer, in bits [5]"},
	    {"--mirostat-lr", "mirostat_eta", &S::mirostat_eta, 0, 1,
	     "Mirostat: learning rate of the limit of surprise [0.1]"},
	    {"--adaptive-target", "adaptive_target", &S::adaptive_target, -1, 1,
	     "adaptive-p: tokens near this probability become the likeliest; less than 0: off [-1]"},
	    {"--adaptive-decay", "adaptive_decay", &S::adaptive_decay, 0, 0.99,
	     "adaptive-p: decay of the mean probability of earlier tokens, which the next one compensates [0.9]"},
	};
	return all;
}

std::span<const SamplingStep> sampling_steps() {
	static constexpr SamplingStep all[] = {
	    {"penalties", "penalties",
	     [](Sampling& x) { x.repeat_penalty = 1, x.presence_penalty = 0, x.frequency_penalty = 0; }},
	    {"dry", "dry", [](Sampling& x) { x.dry_multiplier = 0; }},
	    {"top_n_sigma", "top-n-sigma", [](Sampling& x) { x.top_n_sigma = 0; }},
	    {"top_k", "top-k", [](Sampling& x) { x.top_k = 0; }},
	    {"typ_p", "typical", [](Sampling& x) { x.typical_p = 1; }},
	    {"top_p", "top-p", [](Sampling& x) { x.top_p = 1; }},
	    {"min_p", "min-p", [](Sampling& x) { x.min_p = 0; }},
	    {"xtc", "xtc", [](Sampling& x) { x.xtc_probability = 0; }},
	    {"temperature", "temp",
	     [](Sampling& x) {
		     if (x.temperature > 0) x.temperature = 1; // 0 is greedy, whatever samplers there are
		     x.dynatemp_range = 0;
	     }},
	};
	return all;
}

} // namespace kvrun
