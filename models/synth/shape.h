// Description of a synthetic model: the shape of a well-known one, the type of its matrices, a seed; and its text form.
#pragma once
#include "models/experts.h"
#include <string>
#include <string_view>

namespace kvrun {

enum class SynthVocab : uint8_t { Spm, Llama3, Qwen2 }; // kind of tokenizer

struct SynthSpec {
	std::string name;   // "llama-3.1-8b"; with changes "llama-3.1-8b,layers=2"
	Config config = {}; // of the model
	Mixture mixture = {};
	SynthVocab tokenizer = SynthVocab::Spm;
	DType type = DType::F16; // of matrices; Q8_0 or F16 if its blocks do not divide a row
	uint64_t seed = 1;
	uint32_t mtp = 0; // 1: the file has a prediction layer
};

constexpr std::string_view kSynthPrefix = "synth:";
inline bool is_synth(std::string_view path) { return path.starts_with(kSynthPrefix); }

std::vector<std::string> synth_names(); // in the order of the table
// "NAME[,key=value,...]:TYPE[:SEED]"; keys: arch dim hidden layers heads kv_heads head_dim vocab ctx mtp; for mixtures
// also experts used expert_hidden shared. Throws Error{Invalid}, which names the wrong part.
SynthSpec parse_synth(std::string_view text);
std::vector<std::string> synth_types(); // names of DType that parse_synth() accepts
DType parse_synth_type(std::string_view name);

} // namespace kvrun
