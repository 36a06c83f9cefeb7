// The layer behind a model's own that predicts one more token (multi-token prediction, "nextn"): a model of one layer
// that reads the hidden state of a token and the embedding of the token behind it.
#pragma once
#include "models/config.h"

namespace kvrun {

// The prediction layer of a file as a model of one layer (Config::prediction). Throws Error{Unsupported} naming the key
// if the file has none, or its family's is not one that kvrun runs; Format on missing and misshapen tensors.
Config read_prediction(const Gguf&, const Config& of);
// Number of prediction layers in the file, of which kvrun uses the first; 0 also where it runs none of the family's.
uint32_t prediction_layers(const Gguf&, const Config& of);
// Bytes of the file's tensors behind the model's own layers, which are loaded for --draft mtp alone.
uint64_t prediction_tensor_bytes(const Gguf&, const Config& of);
// The shape of a prediction layer of this model, as a model of one layer with a final norm of its own.
Config prediction_config(const Config& of);
// Tensors that a prediction layer has before its layer, and behind it.
void add_prediction_inputs(std::vector<TensorSpec>&, const Config&);
void add_prediction_outputs(std::vector<TensorSpec>&, const Config&);
// "blk.12.nextn.WHAT"
std::string prediction_tensor(const Config&, const char* what);
std::string prediction_norm(const Config&); // name of the layer's own final norm

} // namespace kvrun
