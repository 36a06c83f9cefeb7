// Assistants: files with a few layers that guess the next tokens of one model (--draft FILE). Their layers have no keys
// and values: they attend to those of the model's last layers of their kind. Input is the embedding of a token, as the
// model makes it, and the hidden state of the token before it, behind the model's final norm; each guess also makes the
// hidden state that the next one reads. All guesses of a step have the position of the first one's token.
#pragma once
#include "models/config.h"

namespace kvrun {

constexpr const char *kAssistantIn = "nextn.pre_projection.weight", *kAssistantOut = "nextn.post_projection.weight";

// As read_draft_file(): a model without keys and values (Layer::kv_layer is kOfTarget).
Config read_assistant(const Gguf&, const Config& of);
// The layer of the model whose keys and values a layer of its assistant attends to: the last one of its kind that has
// its own; UINT32_MAX: none fits.
uint32_t layer_attended(const Config& of, const Layer&);
void add_assistant_specs(std::vector<TensorSpec>&, const Config&);

} // namespace kvrun
