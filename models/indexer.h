// The indexer of sparse attention: its metadata and tensors.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Sets Config::indexer, Layer::indexed and index_layer of families that have one; after the layers are described.
void read_indexer(const ConfigKeys&, const Family&, Config&);
void add_indexer_specs(std::vector<TensorSpec>&, const Config&, uint32_t l);

} // namespace kvrun
