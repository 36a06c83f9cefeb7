// Models whose keys have outlier channels: rotation spreads these over the head, and codebooks lose the rest of the
// key.
#pragma once
#include "engine/kv_host/choose.h"
#include "models/gguf.h"

namespace kvrun {

// The largest |bias| of a layer's keys (tensors blk.N.attn_k.bias), before RoPE; 0 without biases.
float largest_key_bias(const Gguf&);
// The largest weight of a norm of keys (blk.N.attn_k_norm.weight) over the root of the mean square of that norm's
// weights: 1 if all are equal; 0 without norms.
float peak_of_key_norms(const Gguf&);
// A policy that would rotate keys stores them per channel instead if the model has large biases or uneven norms and the
// text does not say `scale`; otherwise the policy itself, and no reason.
Choice suit_to_keys(const KvPolicy&, const Gguf&);

} // namespace kvrun
