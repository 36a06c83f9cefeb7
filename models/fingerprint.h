// Hash that identifies a model by its file.
#pragma once
#include "models/gguf.h"

namespace kvrun {

// XXH3 of the metadata, the list of tensors and the first bytes of each tensor: reads a few KiB per tensor.
uint64_t fingerprint(const Gguf&);

} // namespace kvrun
