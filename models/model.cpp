// A model file: metadata, hyper-parameters and tokenizer.
#include "models/model.h"

namespace kvrun {

Model open_model(const std::string& path) { return make_model(Gguf::open(path)); }

Model make_model(Gguf file) {
	Config config = read_config(file);
	Tokenizer tokenizer(file);
	check_model(file, config, tokenizer);
	return {std::move(file), std::move(config), std::move(tokenizer)};
}

void check_model(const Gguf& g, const Config& c, const Tokenizer& t) {
	if (t.vocab() != c.vocab)
		fail(Code::Format, "{}: the tokenizer has {} tokens, the embedding {} rows; the file is damaged", g.name(),
		     t.vocab(), c.vocab);
}

} // namespace kvrun
