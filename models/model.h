// A model file: metadata, hyper-parameters and tokenizer. load_weights() uploads its weights to a backend.
#pragma once
#include "models/config.h"
#include "models/tokenizer.h"

namespace kvrun {

struct Model {
	Gguf file;
	Config config;
	Tokenizer tokenizer;
};

// Throws Error{Io} if the file cannot be read, Format if it is damaged, Unsupported if kvrun cannot run it; messages
// name the file.
Model open_model(const std::string& path);
Model make_model(Gguf file);
// Checks config and tokenizer together: the vocabulary must have the size of the embedding.
void check_model(const Gguf&, const Config&, const Tokenizer&);

} // namespace kvrun
