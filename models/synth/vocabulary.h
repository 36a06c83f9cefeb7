// A vocabulary of any size for a made-up model: bytes, characters, and words of syllables that join step by step.
#pragma once
#include "models/synth/shape.h"

namespace kvrun {

struct SynthTokens {
	std::vector<std::string> texts;  // (vocab)
	std::vector<int32_t> kinds;      // (vocab) as in tokenizer.ggml.token_type
	std::vector<std::string> merges; // of byte-level BPE, most frequent first
	uint32_t bos = 0, eos = 0;
	bool adds_bos = false;
};
SynthTokens synth_tokens(SynthVocab, uint32_t vocab);

} // namespace kvrun
