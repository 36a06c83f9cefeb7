// A number that tells models apart, from their files.
#pragma once
#include "models/gguf.h"

namespace kvrun {

// XXH3 of the metadata, the list of tensors and the first bytes of each: reads a few KiB a tensor, not the whole file.
uint64_t fingerprint(const Gguf&);

} // namespace kvrun
