// A model file: metadata, hyper-parameters and tokenizer; its weights go to a backend by load_weights().
#pragma once
#include "models/config.h"
#include "models/tokenizer.h"

namespace kvrun {

struct Model {
	Gguf file;
	Config config;
	Tokenizer tokenizer;
};

// Throws Error{Io} when the file cannot be read, Format when it is damaged, Unsupported when it is something kvrun does
// not run; each names the file.
Model open_model(const std::string& path);
Model make_model(Gguf file);
// What ties a config and a tokenizer together: refuses a vocabulary of another size than the embedding.
void check_model(const Gguf&, const Config&, const Tokenizer&);

} // namespace kvrun
