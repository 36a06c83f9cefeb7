// A vocabulary of any size for a synthetic model: bytes, characters, and words joined from syllables.
#pragma once
#include "models/synth/shape.h"

namespace kvrun {

struct SynthTokens {
	std::vector<std::string> texts;  // (vocab)
	std::vector<int32_t> kinds;      // (vocab) values of tokenizer.ggml.token_type
	std::vector<std::string> merges; // of byte-level BPE, most frequent first
	uint32_t bos = 0, eos = 0;
	bool adds_bos = false;
};
SynthTokens synth_tokens(SynthVocab, uint32_t vocab);

} // namespace kvrun
