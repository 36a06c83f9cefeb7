// A model file: metadata, hyper-parameters and tokenizer.
#include "models/model.h"

namespace kvrun {

Model open_model(const std::string& path) { return make_model(Gguf::open(path)); }

Model make_model(Gguf file) {
	Config config = read_config(file);
	Tokenizer tokenizer(file);
	if (tokenizer.vocab() != config.vocab)
		fail(Code::Format, "{}: the tokenizer has {} tokens, the embedding {} rows; the file is damaged", file.name(),
		     tokenizer.vocab(), config.vocab);
	return {std::move(file), std::move(config), std::move(tokenizer)};
}

} // namespace kvrun
