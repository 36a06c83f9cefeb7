// The table of synthetic models: shapes of well-known models.
#pragma once
#include "models/recurrent.h"
#include "models/synth/shape.h"
#include <span>

namespace kvrun {

struct SynthTraits {         // traits of few families
	uint32_t rotary_dim = 0; // 0: head_dim
	float embedding_scale = 0, residual_scale = 1, logit_scale = 1,
	      attention_scale = 0; // as in Config; 0: the family's
	uint32_t window = 0;
	// Of layers with a window; 0: as in other layers. RoPE rotates all of window_head_dim.
	uint32_t window_heads = 0, window_kv_heads = 0, window_head_dim = 0;
	bool gate_by_head = false;                // as in Layer
	uint32_t shared_kv = 0;                   // so many last layers use keys and values of earlier ones
	uint32_t layer_input_dim = 0;             // as in Config
	uint32_t laurel_rank = 0, cut_layers = 0; // as in Layer; first layers with Layer::gate_cut
	bool v_is_k = false;                      // in layers without a window
	bool qkv_bias = false;
	bool rms = false;            // of Family::norm_by_key
	bool parallel = false;       // MlpInput::Parallel, with Family::optional_qk_norm
	bool no_rope = false;        // layers have no positions
	Experts experts = {};        // sizes; the rest is the family's
	uint32_t dense_layers = 0;   // layers before the first mixture
	uint32_t mixture_period = 1; // of the others, every so-many-th
	Recurrent recurrent = {};    // in all layers except every fourth
	uint64_t attending = 0;      // or except layers whose bit is set, counted from the lowest; at most 64 layers
	const char* parts = "";      // of Family::single_parts: M state, * attention, - MLP, E experts, for each layer
	Latent latent = {};          // in all layers; kv_heads is 1 and head_dim the rank
	Indexer indexer = {};        // of IndexerKind::Latent and Heads
	// Behind layer index_from every so-many-th has an indexer, as those up to it have; 0: all layers have one.
	uint32_t index_period = 0, index_from = 2;
	Streams streams = {}; // hyper-connections; of StreamKind::Gated there are n-grams, too
};
struct SynthRow { // values from the models' own files
	const char *name, *arch;
	uint32_t dim, hidden, layers, heads, kv_heads, head_dim, vocab, ctx;
	float theta, eps;
	bool tied; // the output projection is the embedding
	SynthVocab tokenizer;
	SynthTraits more = {};
};
std::span<const SynthRow> synth_rows();

} // namespace kvrun
