// Model families: how each differs from the default. One row per value of general.architecture.
#pragma once
#include "models/config.h"
#include <span>
#include <string_view>

namespace kvrun {

enum class SecondRope : uint8_t { // what some layers use instead of the first RoPE
	None,
	NoneEveryFourth, // every fourth layer has no positions
	NoneInFull,      // layers without a window have no positions, if other layers have a window
	NoneByKey,       // layers that the file names have no positions
	OwnInWindow,     // layers with a window have their own base and no scaling
	UnscaledInWindow // layers with a window have no scaling
};

enum class RopeUse : uint8_t {
	Always,
	IfFinetuned, // unless key rope.scaling.finetuned is false
	Never,
};

enum class DraftKind : uint8_t { // of files that are no models: they draft for one
	None,
	Assistant, // models/assistant.h
	Eagle,     // models/eagle.h
	Block,     // models/dflash.h
};

enum class IndexerKind : uint8_t { // how files describe Config::indexer
	None,
	Blocks,         // blocks of tokens, and queries of its own
	Latent,         // Indexer::of_latent, tokens or gated blocks; layers may share a choice
	Heads,          // Indexer::pool: each head of queries chooses for a KV head
	LatentRopeLast, // as Latent, with Indexer::rope_last and the model's epsilon in the norm of keys
};

enum class MlpInputBy : uint8_t { // what decides Layer::mlp_input
	Family,
	KeyAndNorm,  // Parallel by key use_parallel_residual if no MLP has a norm: converters write it also for others
	KeyOrNormed, // Beside, or Normed if that key is false
	SecondNorm,  // Beside in files with a norm attn_norm_2, which is attention's
};

struct Family {
	const char* arch;                  // general.architecture
	bool neox = false;                 // how RoPE pairs channels
	bool axes_interleaved = false;     // RopeAxes::interleaved
	bool axes_numbered = false;        // RopeAxes::numbered; the file may also have a factor of RoPE's base
	bool partial_rotary = false;       // RoPE may rotate only a part of a head's channels
	bool half_rotary = false;          // the first RoPE rotates half of the channels that the file says
	bool strips_after_special = false; // white space after a control token belongs to it; SentencePiece vocabularies
	NormKind norm = NormKind::Rms;
	bool norm_by_key = false;      // RMS norms if the file has the key of their epsilon
	bool yarn_rounded = true;      // YaRN's ramp begins and ends at whole pairs; GGUF has no key for it
	float longrope_factor = 0;     // factor of cos and sin with LongRope, instead of the file's; 0: the file's
	bool scales_embedding = false; // the embedding is multiplied by sqrt(dim)
	bool norms_embedding = false;  // Config::embedding_norm
	bool weighs_embedding = false; // TextInput::normed
	float out_norm_eps = 0;        // of norms behind attention and MLP; 0: that of the others. GGUF has no key for it
	// Scales of embedding, residual stream and logits of files without the keys are MiniCPM's.
	bool minicpm_scales = false;
	bool divides_logits = false; // the file's logit_scale is a divisor
	RopeUse rope_use = RopeUse::Always;
	bool output_bias = false;
	// In the file, unless that has output_norm, which other programs write for all families; empty: there is none.
	const char* final_norm = "output_norm";
	bool positions = false;      // files have a table of positions (TextInput::positions)
	bool encodes = false;        // Config::encodes, unless the file says otherwise
	bool first_unnormed = false; // the first layer may lack the norm between the residual stream and attention
	SecondRope second_rope = SecondRope::None;
	// If a file names a window but not its layers: every so-many-th layer has none; 0: all layers have one.
	uint32_t window_period = 0;
	bool full_first = false;    // the first of so many has none, not the last
	bool dense_rotated = false; // the first dense layers of a mixture have positions, with or without a window
	bool chunks = false;        // windows are chunks
	bool window_sinks = false;  // layers without a window have no sinks
	bool narrow_values = false; // files may have Layer::narrow_v
	// Defaults for files without the keys; 0: none.
	uint32_t window = 0;
	float score_softcap = 0, logit_softcap = 0;
	bool tempered = false;         // files may have Config::temperature; its length is the context before extension
	Temperature temperature = {};  // default for files without the keys
	bool shares_kv = false;        // the last layers may attend to keys and values of an earlier one (Layer::kv_layer)
	bool output_scales = false;    // files may have Layer::output_scale, as tensors
	bool gains = false;            // files have Layer::attn_gain, mlp_gain and embedding_gain, as tensors
	bool layer_inputs = false;     // files may have Config::layer_input_dim
	bool inputs_projected = false; // Config::inputs_projected; an encoder whose vectors pass output.weight
	// Files have Config::streams of this kind: AltUp with Layer::laurel_rank and Layer::gate_cut; Gated, perhaps with
	// Config::ngrams; Attended, unless the file says otherwise.
	StreamKind streams = StreamKind::None;
	IndexerKind indexer = IndexerKind::None;
	bool index_neox = false;    // RoPE pairs an indexer's channels so, whatever `neox` says
	bool mixture = false;       // files may have experts instead of the MLP; layer.experts says how they are chosen
	bool dense_between = false; // layers between mixtures are dense; the tensors show which
	QkNorm optional_qk_norm = QkNorm::None; // layers have it only if the file has the tensors
	MlpInputBy mlp_input_by = MlpInputBy::Family;
	bool value_experts = false;     // files may have Layer::value_experts in layers that are mixtures
	bool optional_gate = false;     // layers have a gate of attention only if the file has the tensors
	bool norm_groups = false;       // files may have Config::norm_groups
	bool activation_by_key = false; // of a decoder's MLP; encoders always have it so
	// A model with this number of experts has no norm of heads; GGUF has no key for it.
	uint32_t unnormed_experts = 0;
	// A model with this number of layers has ALiBi in place of RoPE, which kvrun does not run; GGUF has no key for it.
	uint32_t alibi_layers = 0;
	bool hidden_halved = false; // the file's number of channels inside the MLP is that of gate and up together
	// A model with this number of layers scales q . k by 1 / sqrt(dim / n_heads); GGUF has no key for it.
	uint32_t wide_scale_layers = 0;
	bool latent = false;     // layers have latent attention (Layer::latent)
	bool compressed = false; // of the kind of Latent::out_groups; layers may have Layer::blocks and Experts::by_token
	bool predicts = false;   // kvrun runs the prediction layer (models/prediction.h) that files may have
	// Files of this family are no models: they draft for one. assists: for a model of this architecture.
	DraftKind drafts = DraftKind::None;
	const char* assists = nullptr;
	bool recurrent = false; // some layers are recurrent; the file says which, and what recurrent_shape leaves open
	Recurrent recurrent_shape = {};
	// All layers are a state, and an MLP if `layer` says so: there is no attention.
	bool all_recurrent = false;
	// A layer is attention, a state or an MLP alone: those without KV heads and MLP are recurrent.
	bool single_parts = false;
	bool skips_parts = false; // layers may lack attention, the MLP or both: their number of heads or channels is 0
	bool rounds = false;      // files may have Config::rounds
	bool limits_mlp = false;  // files may have Layer::mlp_limit and Experts::limit
	bool caps_mlp = false;    // files have Layer::gate_cap and up_cap
	Layer layer = {};         // of every layer, except sizes (in the file) and what depends on the layer's number
};

std::span<const Family> families();
const Family* find_family(std::string_view arch);         // null: unknown
std::string family_names(std::string_view between = " "); // of models, in the order of the table
struct Windows {                                          // windows, as a file describes them
	uint32_t tokens = 0;                                  // 0: none
	std::vector<bool> layers = {};                        // which layers have one; empty: default of the family
	float theta = 10000;                                  // base of RoPE in these layers, for SecondRope::OwnInWindow
	uint32_t rotated = 0;             // so many first layers have positions, whatever SecondRope::NoneInFull says
	std::vector<bool> positions = {}; // which layers have positions, for SecondRope::NoneByKey; empty: all
};
bool has_window(const Family&, const Windows&, uint32_t l);
uint32_t first_full(const Family&, const Windows&, uint32_t n_layers); // first layer without a window; 0: all have one
struct LayerSizes { // sizes that differ between layers, as a file describes them; empty and 0: the value of Config
	std::vector<uint32_t> n_heads, n_kv_heads, hidden_dim; // of each layer
	uint32_t window_head_dim = 0, window_rope_dim = 0;     // of layers with a window
	uint32_t shared_kv = 0; // so many last layers use keys and values of the last earlier layer of their kind
};
// Sets c.layers from the sizes and ropes[0] of c, and sets ropes[1] if some layers use a second RoPE.
void describe_layers(Config& c, const Family&, Layer layer, const Windows& = {}, const LayerSizes& = {});

} // namespace kvrun
