// How the tokens of an answer are chosen: the part that kvrun run, chat, serve and the window have in common.
#pragma once
#include "engine/kvrun.h"
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvrun {

struct Sampling { // as in kvrun_generate_options
	double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1, presence_penalty = 0;
	double frequency_penalty = 0, top_n_sigma = 0, typical_p = 1, xtc_probability = 0, xtc_threshold = 0.1;
	double dynatemp_range = 0, dynatemp_exponent = 1, dry_multiplier = 0, dry_base = 1.75;
	double mirostat_tau = 5, mirostat_eta = 0.1, adaptive_target = -1, adaptive_decay = 0.9;
	int64_t top_k = 40, min_keep = 0, repeat_last = 64, mirostat = 0, dry_allowed_length = 2,
	        dry_last = -1; // dry_last -1: all
	std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};

	// `breakers` must live as long as the options are used, and this struct.
	kvrun_generate_options options(uint64_t seed, std::vector<const char*>& breakers) const;
};

// A number of Sampling that users can set. The value without effect or the default is in `help`.
struct SamplingOption {
	const char* flags; // of the command line; the first, without its dashes, is the name of `/set`
	const char* field; // of a request
	std::variant<double Sampling::*, int64_t Sampling::*> at;
	double lowest, highest;
	const char* help;
	bool also_minus_one = false; // where people type it: -1 is llama.cpp's word for all, or for the whole context
};
std::span<const SamplingOption> sampling_options();

struct SamplingStep { // a step of sampling, by the names of llama.cpp
	const char* name;
	const char* other; // another name
	void (*off)(Sampling&);
	bool is_called(std::string_view word) const { return word == name || word == other; }
};
std::span<const SamplingStep> sampling_steps(); // in the order in which they are applied

} // namespace kvrun
