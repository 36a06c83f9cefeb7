// Reads the pages of a cache back from a device and dequantises them on the host: for checks and `kvrun replay`.
#pragma once
#include "engine/kv_device/sequence.h"

namespace kvrun {

struct LayerValues {
	std::vector<float> k, v; // (n_tokens, n_kv_heads, head_dim) as attention sees them; NaN where evicted
};
// Submits and waits. Formats are read by the definitions of engine/kv_host/quant.h and shaders/shared/kv_page.h.
std::vector<LayerValues> read_back(Backend&, const KvSequence&);

} // namespace kvrun
