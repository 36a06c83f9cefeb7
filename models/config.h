// GGUF metadata -> Config: the hyper-parameters of a model, checked against each other and against the tensors.
#pragma once
#include "models/gguf.h"
#include <vector>

namespace kvrun {

enum class RopeScaling : uint8_t {
	None,
	Linear,   // positions / factor
	Llama3,   // long wavelengths / factor, a smooth ramp between
	Yarn,     // arXiv:2309.00071
	LongRope, // a factor per frequency, one list for short and one for long contexts; arXiv:2402.13753
};

struct Rope {
	uint32_t dim = 0;    // leading channels of a head that are rotated (rotary_dim)
	float theta = 10000; // base of the frequencies
	bool neox = false;   // pairs are (i, i + dim / 2), else (2i, 2i + 1)
	RopeScaling scaling = RopeScaling::None;
	float factor = 1;                           // context extension
	uint32_t original_ctx = 0;                  // trained context before extension; 0 for None and Linear
	float attn_factor = 1;                      // LongRope, Yarn: factor the file gives for cos and sin
	float beta_fast = 32, beta_slow = 1;        // Yarn: rotations that bound the ramp
	float low_freq = 1, high_freq = 4;          // Llama3: wavelengths per original_ctx that bound the ramp
	std::vector<float> freqs;                   // (dim / 2) divisor of each frequency (rope_freqs.weight), or empty
	std::vector<float> long_freqs, short_freqs; // (dim / 2) the same for LongRope
};

enum class QkNorm : uint8_t {
	None,
	Head, // RMS norm of each head of q and k before RoPE, the same weights for all heads
};
enum class MlpKind : uint8_t {
	SwiGLU, // down(silu(gate(x)) * up(x))
};

struct Layer { // what one layer computes
	uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
	uint32_t window = 0; // tokens it was trained to look back; 0: all
	QkNorm qk_norm = QkNorm::None;
	bool qkv_bias = false;  // wq, wk, wv have biases
	bool fused_qkv = false; // the file has q, k, v in one tensor, rows in that order
	MlpKind mlp = MlpKind::SwiGLU;
	uint32_t hidden_dim = 0;    // channels inside the MLP
	bool fused_gate_up = false; // the file has gate and up in one tensor, gate first
};

struct Config {
	std::string arch;        // family as the file names it; see models/families.cpp
	std::string name;        // general.name, may be empty
	uint32_t dim = 0;        // channels of the residual stream
	uint32_t hidden_dim = 0; // channels inside the MLP
	uint32_t head_dim = 0;   // channels of a head
	uint32_t n_layers = 0, n_heads = 0, n_kv_heads = 0;
	uint32_t vocab = 0;          // rows of the embedding
	uint32_t max_seq = 0;        // context length the model was made for, in tokens
	uint32_t sliding_window = 0; // tokens a layer was trained to look back; 0: all
	float norm_eps = 0;
	Rope rope;
	bool tied_embedding = false; // the output projection is the embedding
	std::vector<Layer> layers;   // (n_layers)
};

// One tensor a model of this config must have.
struct TensorSpec {
	std::string name;
	uint32_t rows, cols; // a vector has 1 row
	bool matrix;         // used in its own type; else a vector, used as F32
};

const char* rope_scaling_name(RopeScaling);
// Every tensor of the model, in the order in which they are used.
std::vector<TensorSpec> tensor_specs(const Config&);
// Reads and checks the config; refuses unknown families, contradictions, missing and misshapen tensors.
Config read_config(const Gguf&);
// Says once what a context of this many tokens means for the model: beyond what it was made for, beyond its window.
void warn_about_context(const Config&, uint32_t ctx);
// (rope.dim / 2) radians per position of each pair, after scaling, for a context of `ctx` tokens.
std::vector<float> rope_inv_freq(const Config&, uint32_t ctx);
// Multiplies cos and sin.
float rope_attention_scale(const Config&);

} // namespace kvrun
