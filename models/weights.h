// Weights on a backend: uploaded in bounded pieces, in the block formats of the file.
#pragma once
#include "backends/backend.h"
#include "models/config.h"
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>

namespace kvrun {

struct NormWeights {
	View w, b; // (dim) f32; b is empty without NormKind::LayerBiased, w of bare norms
};
struct ExpertWeights {                        // empty where the layer (Experts) has no such tensor
	View router;                              // (n, dim)
	View router_bias;                         // (n) f32
	View choice_bias;                         // (n) f32
	View of_tokens;                           // (vocab * used) u32, of Experts::by_token
	View latent_down, latent_up;              // (latent_dim, dim), (dim, latent_dim)
	View latent_norm;                         // (latent_dim) f32
	View w_gate, w_up;                        // (n * hidden_dim, width), expert after expert; Experts::width(dim)
	View b_gate, b_up;                        // (n * hidden_dim) f32
	View w_down, b_down;                      // (n * width, hidden_dim), (n * width) f32
	View shared_switch;                       // (1, dim)
	View shared_gate, shared_up, shared_down; // (shared_dim, dim), (dim, shared_dim)
	View factors;                             // (n) f32
	// Norms of Experts::beside_mlp, (dim) f32: before the router, before and after the experts, after the MLP. norm
	// also of Experts::at_input.
	View router_norm;
	NormWeights norm, out_norm, mlp_out_norm;
};
struct RecurrentWeights {
	View qkv, gate;   // (channels, dim), (values, dim)
	View beta, alpha; // (n_heads, dim)
	// Of RecurrentKind::ChannelDelta: (values, dim) each in place of qkv; (k_dim, dim), behind which gate is (values,
	// k_dim) and alpha (decays, k_dim), or with Recurrent::full_gates nothing; (values, taps) f32 each in place of
	// conv.
	View q, k, v, gate_low, alpha_low, conv_q, conv_k, conv_v;
	// Of RecurrentKind::SelectiveScan, from the convolution's output: (k_dim, values) each and (rank, values), behind
	// which alpha is (values, rank). Norms of Recurrent::step_norm, (k_dim) each and (rank) f32.
	View b, c, step_low, b_norm, c_norm, step_norm;
	View value;     // (values, dim), of RecurrentKind::ShortConv, whose gates are qkv and gate
	View out;       // (dim, values)
	View conv;      // (channels, taps) f32
	View conv_bias; // (channels) f32, or empty
	// (n_heads) f32; ChannelDelta: shift (decays); SelectiveScan: (values, k_dim), (values)
	View rate, shift;
	// Of RecurrentKind::Removal: q, k, v and the products with gate_low and alpha_low as of ChannelDelta; the same of
	// rates of learning and of shares of the first layer's values; f32 biases (values) of both, factors of keys
	// (n_heads * k_dim) and a bias of the norm, which are per head. conv is (mixes, dim).
	View beta_low, beta_b, share_low, share, share_b, removal, taken, bonus, norm_b;
	View skip; // (n_heads) f32, of StateSpace, whose steps alpha projects; SelectiveScan: (values)
	View norm; // (v_dim) f32; StateSpace: (n_key_heads, values of a group)
};
struct LatentWeights {
	View q_a, q_a_norm;  // (q_rank, dim), (q_rank) f32; empty without Latent::q_rank
	View q_nope, q_rope; // (n_heads * nope_dim, dim or q_rank), (n_heads * rope_dim, the same) or empty
	View kv_a, k_rope;   // (rank, dim), (rope_dim, dim) or empty
	View kv_norm;        // (rank) f32
	View k_b, v_b;       // (n_heads * rank, nope_dim), (n_heads * v_dim, rank), head after head
	// Of Latent::out_groups q_nope is (n_heads * rank, q_rank), and v_b (out_groups * out_rank, channels of the heads
	// of a group), group after group; there is no k_b.
};
struct StreamWeights {           // of Config::streams and Layer::laurel_rank
	View router, router_norm;    // (streams, dim), (dim) f32
	View predict, correct;       // (streams * streams, streams), (streams, streams)
	View scale;                  // (dim) f32
	View left, right, left_norm; // (laurel_rank, dim), (dim, laurel_rank), (dim) f32
};
struct MixerWeights { // of hyper-connections, or of StreamKind::Attended
	View norm;        // (streams, dim) f32, divided by the number of streams
	View down, up;    // (rank, streams * dim), (streams * dim, rank)
	View inject;      // (streams, streams * dim); empty for the model's output
	View coefs;       // (Streams::coefs(), streams * dim), of StreamKind::Manifold; the model's output: (streams, ..)
	View coef_base, scale; // (Streams::coefs()), (parts of op::StreamCoefs) f32
	View attend;           // (dim) f32, of StreamKind::Attended: op::StreamAttend
};
struct NGramWeights {                     // of Config::ngrams, of the layer that adds them
	View key, value;                      // (streams * dim, width), (dim, width)
	View key_norm, query_norm, conv_norm; // (streams, dim) f32
	View conv;                            // (streams * dim, NGrams::span()) f32
};
struct IndexWeights {   // of layers with an indexer
	View q, k;          // (n_heads * dim, dim of the model, or Latent::q_rank), (dim, dim of the model)
	View heads;         // (n_heads, dim of the model), of Indexer::of_latent
	View gate, places;  // (dim, dim of the model), (block, dim) f32, of Indexer::gated
	                    // of Indexer::of_entries they and k have 2 * dim rows or columns
	View q_norm;        // (dim) f32, unless of_latent
	NormWeights k_norm; // (dim) f32
};
struct BlockWeights { // of Layer::blocks
	View kv, gate;    // (Blocks::width(), dim of the model)
	View places;      // (tokens of a block, Blocks::width()) f32
	View norm;        // (head_dim) f32
};
struct LayerWeights { // empty where the layer (Layer) has no such tensor
	NormWeights attn_norm;
	View wq;         // (n_heads * head_dim, dim)
	View wq_gate;    // the same, for Layer::output_gate; of Layer::gate_by_head (n_heads, dim)
	View wk, wv;     // (n_kv_heads * head_dim, dim)
	View bq, bk, bv; // (n_heads * head_dim), (n_kv_heads * head_dim) f32
	// QkNorm::HeadGain: q_norm (n_heads) f32, its factors; QkNorm::Head: (head_dim) f32; QkNorm::Row, HeadLayer,
	// HeadOwn:
	// (n_heads * head_dim), (n_kv_heads * head_dim)
	View q_norm, k_norm;
	View sinks; // (n_heads) f32
	View wo;    // (dim, n_heads * head_dim); latent: (dim, n_heads * v_dim)
	RecurrentWeights recurrent;
	LatentWeights latent;
	View bo; // (dim) f32
	NormWeights attn_out_norm, mlp_norm, mlp_out_norm;
	View w_gate, w_up; // (hidden_dim, dim)
	View b_gate, b_up; // (hidden_dim) f32
	View w_down;       // (dim, hidden_dim)
	View mlp_mix;      // (1, dim) f32, of Layer::mlp_shift
	View b_down;       // (dim) f32
	ExpertWeights experts;
	View input_gate, input_proj; // (layer_input_dim, dim), (dim, layer_input_dim)
	View input_norm;             // (dim) f32
	StreamWeights streams;
	MixerWeights attn_mixer, mlp_mixer;
	NGramWeights ngrams;
	IndexWeights index;
	View q_norm_b, k_norm_b;      // of Layer::qk_norm_bias, as q_norm and k_norm
	NormWeights attn_second_norm; // of Layer::sums_twice
	// Of Layer::sub_norms: (n_heads * value_dim()), (hidden_dim) f32
	View attn_sub_norm, mlp_sub_norm;
	ExpertWeights value_experts; // of Layer::value_experts: router, choice_bias and w_up
	BlockWeights blocks;
};
// All views of a layer's weights, in the order of the members.
using LayerViews = std::array<View, sizeof(LayerWeights) / sizeof(View)>;
static_assert(sizeof(LayerViews) == sizeof(LayerWeights), "LayerWeights has only views");
inline LayerViews views_of(const LayerWeights& w) { return std::bit_cast<LayerViews>(w); }
struct PredictionWeights {       // of Config::prediction
	View embed_norm, state_norm; // (dim) f32
	View join;                   // (dim, 2 * dim): of the embedding's norm, then of the hidden state's
};
struct FusionWeights {          // of Config::fusion
	View norm;                  // (fused_states()) f32, empty without Fusion::normed; of Config::block (dim)
	View join;                  // (dim, fused_states())
	View state_norm;            // (dim) f32, of EAGLE-3
	View markov_in, markov_out; // (Fusion::vocab, rank), (vocab, rank), of DraftBlock::rank
};
struct TextWeights {       // of Config::text_input and text_head; empty without them
	View positions, types; // (TextInput::positions, dim), (TextInput::types, dim)
	NormWeights norm;
	View dense[2];                 // (TextHead::dense[i], dim or dense[0])
	View hidden, hidden_b;         // (dim, dim), (dim) f32
	View hidden_norm;              // (dim) f32
	View classifier, classifier_b; // (labels, dim), (labels) f32
};
struct AssistantWeights { // of an assistant
	View in;              // (dim, 2 * target_dim): of the embedding, then of the hidden state
	View out;             // (target_dim, dim): makes the hidden state that the next guess reads
};
// Limits of what a projection reads and writes: out = clamp(w . clamp(x)) (Gemma 4's vision encoder).
struct Limits {
	float in_low, in_high, out_low, out_high;
};
struct LimitedWeight {
	const Buffer* buf;
	size_t at;
	Limits limits;
};

struct Weights;
const Limits* limits_of(const Weights&, const View& w); // of a projection; null: it has none

struct Weights { // immutable after load; views point into `buffers`. Of a layer that drafts, empty: what it shares.
	View embed;  // (vocab, dim)
	NormWeights final_norm; // empty where there is none
	View lm_head;           // (vocab, dim); equal to embed if tied
	View lm_head_b;         // (vocab) f32; empty without Config::output_bias
	// Layer inputs; empty without Config::layer_input_dim. Row t * n_layers + l belongs to token t and layer l.
	View input_table;             // (vocab * n_layers, layer_input_dim)
	View input_model_proj;        // (n_layers * layer_input_dim, dim)
	View input_proj_norm;         // (layer_input_dim) f32
	View streams_in, streams_out; // ((streams - 1) * dim, dim): of all streams but the first
	MixerWeights out_mixer;       // of hyper-connections
	std::vector<LayerWeights> layers;
	std::vector<LimitedWeight> limits; // of matrices of layers
	PredictionWeights prediction;
	FusionWeights fusion;
	AssistantWeights assistant;
	TextWeights text;
	std::unordered_map<std::string, View> matrices; // by name in the file
	std::deque<Buffer> buffers;                     // addresses survive a move of Weights
	size_t bytes = 0;                               // all weights
	size_t host_bytes = 0;                          // the part in host memory, read over the bus
};

struct RowPlace {
	uint32_t to; // row on the device
	uint32_t n;  // rows of the file from here on that stay consecutive
};
// Where row `row` of a tensor's n rows goes: see TensorSpec::halves.
RowPlace row_place(const TensorSpec&, uint32_t n, uint32_t row);

using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>; // of the file; may throw

uint64_t weight_bytes(const Gguf&, const Config&); // of all tensors of the config, as in the file
// Uploads all tensors of tensor_specs(). Throws Error{Unsupported} for a tensor that no single buffer can hold,
// Error{OutOfMemory} from the backend, Error{Io} if the file changed since it was opened.
// in_host: per tensor of tensor_specs(), whether it is Mem::Mapped; empty: none.
Weights load_weights(const Gguf&, const Config&, Backend&, const LoadProgress& = {},
                     const std::vector<bool>& in_host = {});

} // namespace kvrun
