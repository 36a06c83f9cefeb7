// What a made-up model is: the shape of a well-known one, the type of its matrices, a seed; and how that is written.
#pragma once
#include "models/experts.h"
#include <string>
#include <string_view>

namespace kvrun {

enum class SynthVocab : uint8_t { Spm, Llama3, Qwen2 }; // kind of tokenizer

struct SynthSpec {
	std::string name;   // "llama-3.1-8b", with what was changed: "llama-3.1-8b,layers=2"
	Config config = {}; // of the model
	Mixture mixture = {};
	SynthVocab tokenizer = SynthVocab::Spm;
	DType type = DType::F16; // of matrices; where rows do not divide into its blocks, Q8_0 or F16
	uint64_t seed = 1;
};

constexpr std::string_view kSynthPrefix = "synth:";
inline bool is_synth(std::string_view path) { return path.starts_with(kSynthPrefix); }

std::vector<std::string> synth_names(); // in the order of the table
// "NAME[,key=value,...]:TYPE[:SEED]"; keys: arch dim hidden layers heads kv_heads head_dim vocab ctx, and of
// mixtures experts used expert_hidden shared. Throws Error{Invalid} naming the part that is wrong.
SynthSpec parse_synth(std::string_view text);
std::vector<std::string> synth_types(); // names of DType as parse_synth() takes them
DType parse_synth_type(std::string_view name);

} // namespace kvrun
