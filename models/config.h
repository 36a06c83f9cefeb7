// GGUF metadata -> Config: the hyper-parameters of a model, checked against each other and against the tensors.
#pragma once
#include "backends/ops.h"
#include "models/gguf.h"
#include <limits>
#include <vector>

namespace kvrun {

enum class RopeScaling : uint8_t {
	None,
	Linear,   // positions / factor
	Llama3,   // long wavelengths / factor, a smooth ramp between
	Yarn,     // arXiv:2309.00071
	LongRope, // a factor per frequency, one list for short and one for long contexts; arXiv:2402.13753
};

// Which of a position's numbers turns each pair of channels (M-RoPE, arXiv:2409.12191; of text all are equal).
struct RopeAxes {
	uint32_t time = 0, line = 0, column = 0; // pairs of each; all 0: positions are one number
	bool interleaved = false;                // the pairs alternate between the axes; else they follow each other
	// XD-RoPE of Hunyuan's models: the axes are time, column, line and the number of the image in the text. Rows of
	// images have times as tokens have; lines and columns are counted in the image.
	bool numbered = false;
	uint32_t image = 0; // pairs
	explicit operator bool() const { return line || column; }
	enum Axis : uint8_t { Time, Line, Column, Image };
	Axis of(uint32_t pair) const {
		if (numbered)
			return pair < time ? Time : (pair -= time) < column ? Column : (pair -= column) < line ? Line : Image;
		if (!interleaved)
			return pair < time || pair >= time + line + column ? Time : pair < time + line ? Line : Column;
		return pair % 3 == 1 && pair / 3 < line ? Line : pair % 3 == 2 && pair / 3 < column ? Column : Time;
	}
};

struct Rope {
	uint32_t dim = 0;    // leading channels of a head that are rotated (rotary_dim)
	float theta = 10000; // base of the frequencies
	bool rotates = true; // false: no positions at all (NoPE); cos is 1, sin is 0
	bool neox = false;   // pairs are (i, i + dim / 2), else (2i, 2i + 1)
	RopeAxes axes = {};
	RopeScaling scaling = RopeScaling::None;
	float factor = 1;                    // context extension
	uint32_t original_ctx = 0;           // trained context before extension; 0 for None and Linear
	float attn_factor = 1;               // LongRope, Yarn: the file's factor of cos and sin
	float beta_fast = 32, beta_slow = 1; // Yarn: rotations that bound the ramp
	bool ramp_rounded = true;            // Yarn: the bounds are rounded outwards to whole pairs
	float low_freq = 1, high_freq = 4;   // Llama3: wavelengths per original_ctx that bound the ramp
	std::vector<float> freqs = {};       // (dim / 2) divisor of each frequency (rope_freqs.weight), or empty
	std::vector<float> long_freqs = {}, short_freqs = {}; // (dim / 2) the same for LongRope
};

enum class NormKind : uint8_t {
	Rms,
	Layer,       // LayerNorm without bias
	LayerBiased, // LayerNorm with bias
	LayerBare,   // LayerNorm without weights and bias
	RmsBare,     // RMS norm without weights
};
inline bool is_rms(NormKind n) { return n == NormKind::Rms || n == NormKind::RmsBare; }
inline bool is_bare(NormKind n) { return n == NormKind::LayerBare || n == NormKind::RmsBare; }
enum class QkNorm : uint8_t { // of q and k before RoPE; RMS norms except the last
	None,
	Head,      // each head by itself, the same weights for all heads
	HeadLast,  // the same after RoPE
	HeadUnit,  // each head by itself, without weights; after RoPE it would be the same
	HeadGain,  // the same, and each head of q times a factor of its own
	Row,       // all heads of a token together
	HeadOwn,   // each head by itself, each head with weights of its own
	HeadLayer, // LayerNorm of each head by itself, each head with weights of its own
};
enum class MlpKind : uint8_t {
	Gated, // down(activation(gate(x)) * up(x)); with Silu: SwiGLU
	Plain, // down(activation(up(x)))
	None,  // the layer is its attention or state alone
};
enum class MlpInput : uint8_t {
	Normed,   // the residual stream after attention, normalised
	Raw,      // the same without a norm
	Beside,   // the stream before attention, by a norm of its own; outputs of both are added to the stream
	Parallel, // the input of attention: outputs of attention and MLP are added to the stream together
};

// Attention gets sharper with position: q at position p is multiplied by 1 + scale * log(1 + floor((p + offset) /
// length)).
struct Temperature {
	float scale = 0; // 0: none
	uint32_t length = 0, offset = 0;
	bool unrotated = false; // only in layers without positions (Rope::rotates)
};

constexpr float kUnlimited = std::numeric_limits<float>::infinity();

struct Experts {              // a mixture of experts in place of a dense MLP
	uint32_t n = 0;           // 0: the MLP is dense
	uint32_t used = 0;        // experts that a token uses
	uint32_t hidden_dim = 0;  // channels inside an expert
	uint32_t latent_dim = 0;  // a matrix makes the rows that experts read, another widens their sum; 0: neither
	bool latent_norm = false; // the sum passes a norm before that
	const char *latent_down = "ffn_latent_down", *latent_up = "ffn_latent_up"; // in the file
	Gating gating = Gating::Softmax;
	bool normalise = false;                 // a token's weights are divided by their sum
	float scale = 1;                        // then weights are multiplied by this
	uint32_t n_groups = 1, used_groups = 1; // experts are chosen from the best used_groups groups
	bool choice_bias = false;               // a bias is added to weights for the choice alone
	bool choice_bias_bare = false;          // the name has no ".bias" behind it
	bool by_token = false;                  // a table names a token's experts (kTokenExperts); scores only weigh them
	bool router_bias = false;               // logits of experts have a bias
	bool bias = false;                      // matrices of experts have biases
	bool early = false;                     // the layer's input chooses them, before attention
	bool clamped = false;                   // clamped SwiGLU (KV_GLU_LIMIT in shaders/shared/experts.h)
	bool fused_gate_up = false;             // the file has gate and up of an expert in one tensor, gate first
	uint32_t shared_dim = 0;                // channels inside the MLP that every token also uses; 0: none
	bool shared_fused = false;              // the file has gate and up of that MLP in one tensor, gate first
	float limit = kUnlimited;               // as Layer::mlp_limit, of experts
	bool shared_mean = false;               // its output and that of the experts are halved
	bool shared_gate = false;               // its output is multiplied by the sigmoid of a logit of its own
	bool factors = false;                   // weights are finally multiplied by a factor per expert
	bool weigh_input = false;               // the weight multiplies what the expert reads, not its output
	// The layer also has a dense MLP. MLP, experts and router each read the residual stream after attention through a
	// norm of their own. The outputs of MLP and experts each pass a norm; their sum passes the layer's.
	bool beside_mlp = false;
	// The layer also has a dense MLP, as wide as the model. Experts read the layer's input, before attention, through a
	// norm of their own; outputs of attention, MLP and experts are added to the stream.
	bool at_input = false;

	bool with_mlp() const { return !n || beside_mlp || at_input; } // whether the layer has a dense MLP
	// Of the rows that experts read and write, in a model with rows of dim channels.
	uint32_t width(uint32_t dim) const { return latent_dim ? latent_dim : dim; }
};

enum class RecurrentKind : uint8_t {
	DeltaRule,  // a short convolution with silu of q, k and v, then the gated delta rule
	StateSpace, // Mamba-2: a short convolution with silu of values, B (keys) and C (queries), then the scan
	// Kimi delta attention: the delta rule with a decay for each channel of keys; q, k and v have tensors and
	// convolutions of their own; decays and the gate of the output are products with two matrices, the first of which
	// has k_dim rows, or with one (Recurrent::full_gates).
	ChannelDelta,
	// Mamba 1: a short convolution with silu of values alone; matrices make B, C and the step of each channel of what
	// it gives, the step by way of a vector of Recurrent::rank channels. One head of v_dim channels, whose elements of
	// the state decay at rates of their own.
	SelectiveScan,
	ShortConv, // out = c * conv(b * x): a short convolution between two gates, one head of v_dim channels without keys
	// RWKV-7: the delta rule whose state forgets along keys of its own (DeltaGates::removal), with a decay and a rate
	// of learning for each channel of keys. All projections read mixes of a row and the one before it, in place of a
	// convolution; those of decays, rates, the share of the first layer's values and the gate are products of two
	// matrices. Each head of the output passes a norm, and the row's own value is added.
	Removal,
};
enum class StepNorm : uint8_t { // SelectiveScan: of B, C and what steps are made of
	None,
	Unit, // RMS norms without weights
	Weighted,
};
struct Recurrent {            // instead of attention, or beside it: a state
	uint32_t n_heads = 0;     // 0: the layer attends
	uint32_t n_key_heads = 0; // heads of queries and of keys
	uint32_t k_dim = 0, v_dim = 0;
	uint32_t taps = 0;        // tokens that the convolution sees
	bool tiled = false;       // head h uses key head h % n_key_heads, else h / (n_heads / n_key_heads)
	bool fused_gates = false; // the file has beta and alpha in one tensor: per key head beta, then alpha
	RecurrentKind kind = RecurrentKind::DeltaRule;
	bool conv_bias = false;  // the convolution has a bias
	bool full_gates = false; // ChannelDelta: decays and the gate are products with one matrix each
	bool full_gate = false;  // the same of the gate alone
	float bound = 0;         // ChannelDelta: as DeltaArgs::bound
	uint32_t rank = 0;       // SelectiveScan: channels that steps are made of
	StepNorm step_norm = StepNorm::None;
	Activation gate_function = Activation::Silu; // DeltaRule: of the output's gate
	bool normed = true; // StateSpace: a norm of each group of heads behind the gate; Removal: of each head before it
	// Removal: rows between the two matrices of decays, rates, shares and the gate. No share: the layer's values are
	// the first ones; no gate: there is none.
	uint32_t decay_rank = 0, rate_rank = 0, share_rank = 0, gate_rank = 0;
	uint32_t shifts = 0; // Removal: inputs whose latest rows are in the state: its own, then that of Layer::mlp_shift
	bool beside = false; // the layer also attends: both read the same norm, and the stream gets both outputs
	uint32_t values() const { return n_heads * v_dim; }
	uint32_t channels() const { // convolved: q, k, v
		return kind == RecurrentKind::SelectiveScan ? values() : 2 * n_key_heads * k_dim + values();
	}
	uint32_t decays() const { // of a token
		if (kind == RecurrentKind::SelectiveScan) return values();
		const bool by_channel = kind == RecurrentKind::ChannelDelta || kind == RecurrentKind::Removal;
		return by_channel ? n_heads * k_dim : n_heads;
	}
	uint32_t mixes() const { return kind == RecurrentKind::Removal ? gate_rank ? 6 : 5 : 0; }
	uint32_t conv_words() const { // of a sequence's state
		return kind == RecurrentKind::Removal ? shifts * values() : (taps - 1) * channels();
	}
	uint32_t rule_words() const { return n_heads * k_dim * v_dim; }
	bool operator==(const Recurrent&) const = default;
};

// Latent attention (MLA): a token has one latent, which all heads read as keys and as values, and one rotated key. What
// makes keys and values of a latent is part of the projections of queries and outputs.
struct Latent {
	uint32_t rank = 0;     // channels of the latent; 0: the layer has keys and values
	uint32_t rope_dim = 0; // of the rotated key, and of the part of a query that meets it
	uint32_t nope_dim = 0; // of the other part of a query, before it meets the latent
	uint32_t v_dim = 0;    // of what a head makes of the latents it attends to
	uint32_t q_rank = 0;   // queries are made of a vector of so many channels, behind a norm; 0: of the stream itself
	bool no_rope = false;  // the file has no rotated key; kvrun's is zeros, as few as its caches can have
	// DeepSeek V4: heads of queries are as wide as the latent, and normed. So many last channels of both are rotated,
	// and those of what a head makes of latents are turned back. Groups of heads are projected to out_rank channels
	// each, all of which the last projection reads. 0: see above.
	uint32_t rotated = 0, out_groups = 0, out_rank = 0;
	uint32_t out_width() const { return out_groups * out_rank; }
	bool operator==(const Latent&) const = default;
};

// Entries of blocks, which a layer attends to beside the tokens of its window, as if they were latents of the blocks'
// first tokens. An entry is the norm of a sum over tokens, for each channel with shares that are a softmax of gates and
// of places in the block (op::PoolBlocks). Blocks that overlap have a second row of sums and gates, for the next block.
struct Blocks {
	uint32_t tokens = 0; // of a block; 0: none
	bool chosen = false; // blocks overlap, and Config::indexer chooses entries; else all are read
	uint32_t width(uint32_t dim) const { return (chosen ? 2 : 1) * dim; } // of what a token adds
	bool operator==(const Blocks&) const = default;
};

enum class StreamKind : uint8_t { None, AltUp, Gated, Manifold, Attended };

// Several residual streams per token.
// AltUp: a layer predicts all of them from all, computes on the active one, and corrects all by what the active one
// turned out to be. The first is the embedding, the others are projections of it; the model's output is the mean of the
// first and of projections of the others, each as large as the first.
// Gated: hyper-connections (arXiv:2409.19606) with gates of low rank. All streams begin as the embedding. Attention and
// MLP each read the mean of the normed streams, times gates that are made of all of them; their output is added to
// every stream with a factor of its own. The model's output is such a mean. Manifold: hyper-connections with a matrix
// whose rows and columns have sums of 1 (arXiv:2512.24880). Attention and MLP each read a sum of the streams with
// factors, the matrix then mixes the streams, and their output is added to every stream with a factor of its own;
// factors and matrix are made of all streams (op::StreamCoefs). The model's output is such a sum, or the mean.
// Attended: attention residuals. The first stream is the embedding, each other one the sum of what a block of layers
// has made. Attention and MLP each read a mean of the streams up to their block's, weighted by op::StreamAttend; so
// does the model's output.
struct Streams {
	uint32_t n = 1, active = 0;
	StreamKind kind = StreamKind::None;
	uint32_t rank = 0; // Gated: channels that the gates are made of
	// Manifold: rounds of op::StreamCoefs, 0: no matrix mixes the streams; the rest is ConnectArgs'.
	uint32_t rounds = 0;
	float eps = 0, post_scale = 2, post_eps = 0;
	bool weighs_output = false;
	uint32_t block = 0; // Attended: layers of a block
	// Of layer l: its block's stream, which it adds to; and how many streams its attention reads, where a block begins
	// those of earlier blocks alone.
	uint32_t own(uint32_t l) const { return l / block + 1; }
	uint32_t read(uint32_t l) const { return own(l) + !begins(l); }
	bool begins(uint32_t l) const { return l % block == 0; }
	bool hyper() const { return kind == StreamKind::Gated || kind == StreamKind::Manifold; }
	// Manifold: rows of the matrix that makes factors, and the elements of the mixing matrix.
	uint32_t coefs() const { return (rounds ? 2 + n : 2) * n; }
};

// N-grams of tokens that a layer with hyper-connections adds to the streams: hashes of a token and those before it
// choose rows of a table.
struct NGrams {
	uint32_t longest = 0;          // tokens of the longest ones; there are those of 2 and more. 0: the model has none
	uint32_t layer = 0;            // that adds them, before its attention or state
	uint32_t per_length = 0;       // rows of the table for each length
	uint32_t dim = 0;              // channels of a row
	uint32_t taps = 0;             // of the convolution over what they become, whose taps are `longest` tokens apart
	uint32_t separator = 0;        // a token that no n-gram reaches across
	uint32_t image = 0;            // token in place of a row of an image
	std::vector<uint64_t> factors; // (longest) of a token and of those before it, in hashes
	std::vector<uint64_t> first, sizes; // (rows()) part of the table for each of a token's rows
	uint32_t rows() const { return longest ? (longest - 1) * per_length : 0; } // of a token
	uint32_t width() const { return rows() * dim; }
	uint32_t span() const { return (taps - 1) * longest + 1; } // tokens that the convolution reaches over
};

// Chooses the tokens that a token attends to in some layers (Layer::indexed): of the whole blocks of tokens up to its
// own those with the best scores, and the tokens behind the last whole block. A block's score is the sum over the
// indexer's heads of relu(q . k) * weight, where k is the norm of the mean of its tokens' keys, rotated as its first
// token.
struct Indexer {
	uint32_t n_heads = 0, dim = 0; // heads of queries, channels of a head; keys have one
	uint32_t block = 0;            // tokens of a block, a power of two; 0: the model has none
	uint32_t most = 0;             // blocks that are chosen
	bool neox = true;              // how RoPE pairs channels
	// DeepSeek's: queries are made from the latent of attention's queries (Latent::q_rank) and have no norm, that of
	// keys is a LayerNorm with this epsilon, and the token decides the weights of heads, which else are 1.
	bool of_latent = false;
	// Of latents and blocks: a block's key is the sum of its tokens' keys, normed, with a share for each channel: the
	// softmax of what the tokens' gates and their places in the block say (ConvArgs::gates).
	bool gated = false;
	float norm_eps = 1e-6f;
	// Of latents: it chooses entries of Blocks, `most` of them; keys are made as entries are.
	bool of_entries = false;
	bool rope_last = false; // RoPE turns the last channels; on the device they are the first
	// MiniMax-M3's: tokens have a key each (block is 1), and each head of queries chooses for a KV head of its own: of
	// blocks of so many tokens those whose tokens have the largest q . k, and always the last `local` blocks up to the
	// token's own. 0: all heads choose together, as above.
	uint32_t pool = 0, local = 0;
	// A token that sees no more tokens than this attends to all of them.
	uint32_t all_up_to() const { return pool ? (most + local) * pool : most * block + block - 1; }
};

// Of a config that describes the prediction layer of another one: a model of one layer whose embedding, final norm and
// output are those of the other model unless it has its own.
struct Prediction {
	uint32_t block = 0; // number of the layer in the file; 0: the config is a whole model
	bool own_embedding = false, own_norm = false, own_head = false;
	const char* norm_name = "nextn.shared_head_norm"; // in the file
};

// Of a config that describes layers that draft for a model from its hidden states (models/fusion.h): which ones, and
// how they become one row.
struct Fusion {
	std::vector<uint32_t> layers; // the residual stream in front of these layers of the model; empty: a model's config
	uint32_t vocab = 0;           // tokens of the model; Config::vocab is the number of those that can be guessed
	std::vector<uint32_t> tokens; // (Config::vocab) these, by row of the output; empty: all, in order
	bool own_embedding = false, own_head = false; // else the model's
	bool normed = false;                          // EAGLE-3: a norm of all states together comes before they are joined
	bool normed_residual = false; // EAGLE-3: the residual stream begins with the norm of what they are joined to
};

// Of a config that describes layers that guess a block of tokens at once (models/dflash.h).
struct DraftBlock {
	uint32_t size = 0; // tokens that the layers are trained on, the known one included; 0: a config of another kind
	uint32_t mask = 0; // token in place of one that is to be guessed
	bool causal = false;
	float value_scale = 1;    // factor of attention's output
	uint32_t rank = 0;        // channels of the Markov head; 0: none
	bool from_anchor = false; // the first guess is the output at the known token
};

// What the row of a token is made of beside its embedding.
struct TextInput {
	uint32_t positions = 0; // rows of a table, of which that of the token's position is added; 0: none
	uint32_t types = 0; // of encoders: rows of a table, of which that of the token's part of the text is added; 0: none
	bool normed = false; // then a norm with weights follows
};

enum class Pooling : uint8_t { Mean = 1, First, Last }; // of the states of a text's tokens; the values of pooling_type

// What follows the pooled states of a text.
struct TextHead {
	Pooling pooling = Pooling::Mean;
	uint32_t dense[2] = {};       // rows of matrices through which a vector passes, one behind the other; 0: none
	bool dense_is_output = false; // the first of them is output.weight in the file
	// Classifier: scores = w . norm(function(hidden . pooled state + bias)) + bias.
	uint32_t labels = 0; // its scores; 0: there is none
	Pooling label_pooling = Pooling::First;
	bool hidden = false, hidden_bias = false, normed = false, bias = false; // parts that it has
	Activation activation = Activation::None;                               // of the hidden part; None: tanh
	bool softmax = false;                                                   // of the scores
};

inline bool has_mlp_norm(MlpInput i) { return i == MlpInput::Normed || i == MlpInput::Beside; }

constexpr const char* kLatentNorm = "ffn_routed_norm";           // of Experts::latent_norm
constexpr const char* kTokenExperts = "ffn_gate_tid2eid.weight"; // of Experts::by_token
constexpr uint32_t kOfTarget = UINT32_MAX;

struct Layer { // what one layer computes
	// attention
	uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
	uint32_t narrow_v = 0; // channels of a head of v where they are fewer than head_dim: in caches zeros follow them
	// Attends to the keys and values of this layer: usually itself, else an earlier one; kOfTarget: of another model.
	uint32_t kv_layer = 0;
	Window window = {};        // tokens it attends to
	uint32_t rope = 0;         // index into Config::ropes
	float attention_scale = 0; // factor of q . k; 0: 1 / sqrt(head_dim)
	float score_softcap = 0;   // then cap * tanh(score / cap); 0: none
	bool sinks = false;        // each query head has an extra logit in the softmax, without a value
	QkNorm qk_norm = QkNorm::None;
	bool attn_norm = true; // a norm between the residual stream and attention
	// q, k and v are made from two rows side by side: norms of a token's embedding and of the residual stream.
	bool reads_pair = false;
	const char* attn_norm_name = "attn_norm"; // in the file
	bool attn_out_norm = false;               // a norm between attention and the residual stream
	bool qkv_bias = false;                    // wq, wk, wv have biases
	float qkv_limit = kUnlimited;             // q, k and v are taken as at most this far from 0, before RoPE
	bool out_bias = false;                    // wo has a bias
	bool v_norm = false;                      // each head of v is divided by its RMS
	// v is the weighted sum of silu(w x) of the chosen experts, which have hidden_dim rows each.
	Experts value_experts = {};
	bool v_is_k = false;    // there is no wv: v is k before its norm
	bool fused_qkv = false; // the file has q, k, v in one tensor, rows in that order
	// Attention's output is multiplied by a function of a gate. In the file wq has both: per head query, then gate.
	bool output_gate = false;
	bool indexed = false;                           // attends to what Config::indexer chooses
	uint32_t index_layer = 0;                       // for this layer: usually itself, else an earlier one
	bool gate_apart = false;                        // the file has the gate in a tensor of its own, attn_gate
	bool gate_by_head = false;                      // and it has one channel for each head
	Activation gate_function = Activation::Sigmoid; // of the gate
	float gate_scale = 1;                           // of the gate, before that
	Recurrent recurrent = {};                       // replaces attention, unless it is beside it
	bool mixes = true;                              // false: no attention and no state, the layer is its MLP alone
	Latent latent = {};                             // n_kv_heads is 1, head_dim its rank
	Blocks blocks = {};                             // beside a window
	// MLP
	MlpKind mlp = MlpKind::Gated;
	Activation activation = Activation::Silu;
	Xielu xielu = {}; // of Activation::Xielu
	MlpInput mlp_input = MlpInput::Normed;
	const char* mlp_norm_name = "ffn_norm"; // in the file
	bool mlp_norm_bare = false;             // the name has no ".weight" behind it
	bool mlp_out_norm = false;              // a norm between MLP and the residual stream
	bool out_norms_bare = false;            // the names of both have no ".weight" behind them
	bool norms_sum = false;     // these norms are of the stream itself, after attention or MLP has been added (post-LN)
	bool mlp_bias = false;      // w_gate, w_up and w_down have biases
	bool mlp_shift = false;     // the MLP reads a mix of its row and the one before it, which is in the layer's state
	bool fused_gate_up = false; // the file has gate and up in one tensor, gate first
	uint32_t hidden_dim = 0;    // channels inside the MLP
	float mlp_limit = kUnlimited; // SwiGLU takes silu(gate) as at most this, and up as at most this far from 0
	bool limits_gate = false;     // that limit is gate's, not silu(gate)'s; of experts, too
	bool clamped_mlp = false;     // SwiGLU is the clamped one, as with Experts::clamped
	// SwiGLU is cap(gate) * sigmoid(gate) * cap(up), cap(x) = c * tanh(x / c), of experts, too. 0: SwiGLU as it is; of
	// up: it stays as it is.
	float gate_cap = 0, up_cap = 0;
	// Gate channels become max(gate - (mean + cut * deviation), 0) before the activation; -infinity: unchanged.
	float gate_cut = -kUnlimited;
	Experts experts = {}; // with their own activation and biases

	// Attention's sum with the stream becomes (sum + h + norm(right(left(h)))) / sqrt(2), h: what attention reads
	// (Laurel). So many channels between left and right; 0: none.
	uint32_t laurel_rank = 0;
	float output_scale = 1;            // factor of the residual stream after the layer
	float residual_scale = 1;          // factor of the outputs of attention and MLP, before they are added
	float attn_gain = 1, mlp_gain = 1; // factors of their own, of what the last matrix of each reads
	float embedding_gain = 0;          // behind the layer the embedding, times this, is added to the residual stream
	bool ends_round = false;           // behind the layer the residual stream passes the model's final norm
	// Of encoders: scores fall with the distance of the two tokens, in each head by its slope (ALiBi, alibi_slopes()).
	bool alibi = false;
	bool sub_norms = false;    // what the last matrices of attention and MLP read passes a norm
	bool qk_norm_bias = false; // the norms of q and k are LayerNorm, with biases
	bool in_bias = true;       // with mlp_bias: w_gate and w_up have biases, too
	bool up_first = false;     // with fused_gate_up: up comes first
	// With norms_sum: the stream before attention is added once more, and the sum passes a norm attn_norm_2.
	bool sums_twice = false;
};

struct Config {
	std::string arch; // family, as named in the file; see models/families.cpp
	std::string name; // general.name, may be empty
	uint32_t dim = 0; // channels of the residual stream
	uint32_t n_layers = 0;
	// Times that the layers of the file run, each time with keys and values of their own; n_layers counts every run.
	uint32_t rounds = 1;
	// Sizes of the first layer that attends to all tokens; each layer has its own (Layer).
	uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0, hidden_dim = 0;
	uint32_t vocab = 0; // rows of the embedding
	// Channels of a layer's input that depends on the token alone, beside the residual stream; 0: no such input.
	uint32_t layer_input_dim = 0;
	bool inputs_projected = false; // it is a projection of the embedding, without a table of tokens
	Streams streams;
	bool first_values = false; // later layers use the values of the first one's state (RecurrentKind::Removal)
	NGrams ngrams;
	uint32_t max_seq = 0; // trained context length, in tokens
	Indexer indexer;
	NormKind norm = NormKind::Rms;
	float norm_eps = 0;
	uint32_t norm_groups = 1;               // parts of the residual stream's rows that norms divide each by its RMS
	float out_norm_eps = 0;                 // of norms behind attention and MLP; 0: norm_eps
	float embedding_scale = 1;              // factor of the embedding's rows
	bool embedding_norm = false;            // the embedding's rows are divided by their RMS
	float logit_scale = 1;                  // factor of logits
	float logit_softcap = 0;                // then cap * tanh(logit / cap); 0: none
	std::vector<Rope> ropes;                // at least one
	Temperature temperature;                // of all layers
	bool tied_embedding = false;            // the output projection is the embedding
	bool output_bias = false;               // the output projection has a bias
	std::string final_norm = "output_norm"; // in the file; empty: there is none
	std::vector<Layer> layers;              // (n_layers)
	Prediction prediction;
	Fusion fusion;
	DraftBlock block;
	// Tokens see all others of their text, not only earlier ones: texts become vectors, and none are generated. A
	// window has equally many tokens on both sides.
	bool encodes = false;
	TextInput text_input;
	TextHead text_head;
	// Of a file that drafts for a model: channels of that model's residual stream; 0: a model.
	uint32_t target_dim = 0;
};

// Names in the file, of Layer::attn_out_norm and mlp_out_norm.
inline const char* attn_out_norm_name(const Layer& l) {
	return l.norms_sum ? "attn_output_norm" : "post_attention_norm";
}
constexpr const char* kSecondNorm = "attn_norm_2";                                   // of Layer::sums_twice
constexpr const char *kAttnSubNorm = "attn_sub_norm", *kMlpSubNorm = "ffn_sub_norm"; // of Layer::sub_norms
inline const char* up_name(const Layer& l) { return l.mlp_shift ? "channel_mix_key" : "ffn_up"; }
inline const char* down_name(const Layer& l) { return l.mlp_shift ? "channel_mix_value" : "ffn_down"; }
inline const char* mlp_out_norm_name(const Layer& l) { return l.norms_sum ? "layer_output_norm" : "post_ffw_norm"; }
// Rows of channels that a row has outside of layers: residual streams, and values of the first layer.
inline uint32_t rows_per_token(const Config& c) { return c.streams.n + c.first_values; }
// Layers of the file; layer l has the weights of l % this.
inline uint32_t layers_with_weights(const Config& c) { return c.n_layers / c.rounds; }
inline bool attends(const Layer& l) { return l.mixes && (!l.recurrent.n_heads || l.recurrent.beside); }
inline bool has_own_kv(const Config& c, uint32_t l) { return attends(c.layers[l]) && c.layers[l].kv_layer == l; }
inline bool has_indexer(const Config& c, uint32_t l) { return c.layers[l].indexed && c.layers[l].index_layer == l; }
// Channels of what a head makes of the tokens it attends to.
inline uint32_t value_dim(const Layer& l) {
	return l.latent.rank ? l.latent.v_dim : l.narrow_v ? l.narrow_v : l.head_dim;
}
// Of Layer::output_gate: channels of a token.
inline uint32_t gate_width(const Layer& l) { return l.n_heads * (l.gate_by_head ? 1 : value_dim(l)); }
// Channels of what is stored beside a head's keys: values, or the rotated key of a latent.
inline uint32_t second_dim(const Layer& l) { return l.latent.rank ? l.latent.rope_dim : l.head_dim; }
struct Widest { // elements of a row, maximum over layers
	uint32_t q = 0, kv = 0;
};
Widest widest(const Config&);
std::vector<uint32_t> block_sizes(const Config&); // of Layer::blocks, each once; those that are chosen first
constexpr size_t kMostBlockSizes = 2;
uint32_t rope_width(const Config&);   // elements of a row, over all RoPE tables
uint64_t kv_f16_bytes(const Config&); // keys and values of a token, over layers that have their own

// A tensor that a model of this config must have.
struct TensorSpec {
	std::string name;
	uint32_t rows, cols; // a vector has 1 row
	bool matrix;         // kept in its own type; else a vector, converted to F32
	uint32_t depth = 1;  // number of matrices or vectors, one per expert, stored consecutively
	bool halves =
	    false;         // each matrix is two, one below the other; on the device all first ones precede all second ones
	bool flat = false; // the file has all of them in one matrix
	uint32_t together = 1; // rows that form one row of the file
	uint32_t first = 0;    // halves: rows of the first matrix; 0: as many as of the second
	bool swapped = false;  // halves: instead the first one follows the second one in each matrix
	float factor = 1;      // of the elements of a vector, on the device
	bool words = false;    // a vector of u32, which stays so
	// On the device the elements of each of `depth` vectors are so far apart, with zeros between them.
	uint32_t apart = 1;
	uint32_t device_cols() const { return ((cols / depth - 1) * apart + 1) * depth; } // of a vector
};

const char* rope_scaling_name(RopeScaling);
// 12 of "blk.12.attn_q.weight"; 0 of tensors outside the layers.
uint64_t layer_of_tensor(std::string_view name);
// Every tensor of the model, in order of use.
std::vector<TensorSpec> tensor_specs(const Config&);
// Throws Error{Format} if the file's tensor is missing or has another shape.
void check_tensor(const Gguf&, const TensorSpec&);
// Reads and checks the config; refuses unknown families, contradictions, missing and misshapen tensors.
// drafts_for: the file drafts for that model (models/draft_file.h); null: it must be a model.
Config read_config(const Gguf&, const Config* drafts_for = nullptr);
// Warns once if the context is longer than the model's trained context.
void warn_about_context(const Config&, uint32_t ctx);
// (dim / 2) radians per position of each pair, after scaling, for a context of `ctx` tokens.
std::vector<float> rope_inv_freq(const Rope&, uint32_t ctx);
// Factor of cos and sin.
float rope_attention_scale(const Rope&);

} // namespace kvrun
