// Models with large biases of keys: rotation spreads them over the head, and codebooks lose the rest of the key.
#pragma once
#include "engine/kv_host/choose.h"
#include "models/gguf.h"

namespace kvrun {

// The largest |bias| of a layer's keys (tensors blk.N.attn_k.bias), before RoPE; 0 without biases.
float largest_key_bias(const Gguf&);
// A policy that would rotate keys stores them per channel instead if the model has large biases and the text does not
// say `scale`; otherwise the policy itself, and no reason.
Choice suit_to_keys(const KvPolicy&, const Gguf&);

} // namespace kvrun
