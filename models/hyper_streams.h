// Hyper-connections: several residual streams per token with learned connections, and the n-grams added to them.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

constexpr const char* kNGramTable = "per_layer_token_embd.weight";

// Sets Config::streams and ngrams of families that have them.
void read_hyper_streams(const ConfigKeys&, const Family&, Config&);
void add_hyper_specs(std::vector<TensorSpec>&, const Config&); // of the model's output
void add_hyper_specs(std::vector<TensorSpec>&, const Config&, uint32_t l);

} // namespace kvrun
