// Weights on a backend: uploaded in bounded pieces, in the block formats of the file.
#pragma once
#include "backends/backend.h"
#include "models/config.h"
#include <deque>
#include <functional>

namespace kvrun {

struct LayerWeights {
	View attn_norm;      // (dim) f32
	View wq;             // (n_heads * head_dim, dim)
	View wk, wv;         // (n_kv_heads * head_dim, dim)
	View bq, bk, bv;     // (n_heads * head_dim), (n_kv_heads * head_dim) f32; empty without Layer::qkv_bias
	View q_norm, k_norm; // (head_dim) f32; empty without Layer::qk_norm
	View wo;             // (dim, n_heads * head_dim)
	View ffn_norm;       // (dim) f32
	View w_gate, w_up;   // (hidden_dim, dim)
	View w_down;         // (dim, hidden_dim)
};
struct Weights {     // immutable after load; views point into `buffers`
	View embed;      // (vocab, dim)
	View final_norm; // (dim) f32
	View lm_head;    // (vocab, dim); equal to embed when tied
	std::vector<LayerWeights> layers;
	std::deque<Buffer> buffers; // addresses survive a move of Weights
	size_t bytes = 0;           // on the device
};

using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>; // of the file; may throw to stop

// Uploads everything read_config() promised. Throws Error{Unsupported} for a tensor no single buffer can hold,
// Error{OutOfMemory} from the backend, Error{Io} when the file changed since it was opened.
Weights load_weights(const Gguf&, const Config&, Backend&, const LoadProgress& = {});

} // namespace kvrun
