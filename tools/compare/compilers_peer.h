// Columns beside the devices: compilers of absent GPUs, and the peer.
#pragma once
#include "tools/compare/compare.h"

namespace kvrun::comparison {

// "static": [{chip, kernels: [...]}] for --families (this system's RADV) and --vendor-drivers.
void add_static_columns(Json& run, const Options&);
// "peer": {name, results: [{test, depth, cache, tok_s, samples}]}, from llama-bench.
void add_peer(Json& run, const Options&);

} // namespace kvrun::comparison
