// Model families: how each differs from the plainest one. One row per architecture that files name.
#pragma once
#include "models/config.h"
#include <span>
#include <string_view>

namespace kvrun {

enum class SecondRope : uint8_t { // what some layers take instead of the first RoPE
	None,
	NoneEveryFourth, // every fourth layer has no positions
	NoneInFull,      // layers without a window have no positions, where others have one
	OwnInWindow,     // layers with a window have a base of their own, and no scaling
	UnscaledInWindow // layers with a window have no scaling
};

struct Family {
	const char* arch;                  // general.architecture
	bool neox = false;                 // how RoPE pairs channels
	bool partial_rotary = false;       // RoPE may leave channels of a head alone
	bool strips_after_special = false; // white space behind a control token belongs to it; SentencePiece vocabularies
	NormKind norm = NormKind::Rms;
	bool yarn_rounded = true;      // YaRN's ramp begins and ends at whole pairs; files do not say it
	float longrope_factor = 0;     // of cos and sin with LongRope, for which files have another; 0: the file's
	bool scales_embedding = false; // by sqrt(dim)
	bool divides_logits = false;   // the file's logit_scale is a divisor
	bool output_bias = false;
	SecondRope second_rope = SecondRope::None;
	// Of a file that names a window, but not its layers: every so-many-th layer has none; 0: all have one.
	uint32_t window_period = 0;
	// Of a file that does not say them; 0: none.
	uint32_t window = 0;
	float score_softcap = 0, logit_softcap = 0;
	bool tempered = false;      // files may have Config::temperature, over the context before extension
	bool shares_kv = false;     // last layers may attend to what a layer before them has stored (Layer::kv_layer)
	bool output_scales = false; // files may have Layer::output_scale, as tensors
	bool layer_inputs = false;  // files may have Config::layer_input_dim
	bool mixture = false;       // files may have experts in place of the MLP; Layer::experts is how they are chosen
	bool head_norm_optional = false; // QkNorm::Head where the file has the tensors
	// A model of so many layers scales q . k by 1 / sqrt(dim / n_heads), for which GGUF has no key.
	uint32_t wide_scale_layers = 0;
	bool recurrent = false; // some layers are; the file says which, and what recurrent_shape leaves open
	Recurrent recurrent_shape = {};
	Layer layer = {}; // every layer, but for the sizes, which a file says, and what depends on its number
};

std::span<const Family> families();
const Family* find_family(std::string_view arch);         // null: not known
std::string family_names(std::string_view between = " "); // in the order of the table
struct Windows {                                          // as a file describes them
	uint32_t tokens = 0;                                  // 0: there are none
	std::vector<bool> layers = {};                        // which layers have one; empty: as the family has it
	float theta = 10000;                                  // base of RoPE there, for SecondRope::OwnInWindow
};
bool has_window(const Family&, const Windows&, uint32_t l);
uint32_t first_full(const Family&, const Windows&, uint32_t n_layers); // first layer without a window; 0: all have one
struct LayerSizes { // where layers differ, as a file describes them; empty and 0: as Config has it
	std::vector<uint32_t> n_heads, n_kv_heads, hidden_dim; // of each layer
	uint32_t window_head_dim = 0, window_rope_dim = 0;     // of layers with a window
	uint32_t shared_kv = 0; // so many last layers attend to what the last one of their kind before them has stored
};
// Sets c.layers from the sizes and ropes[0] of c, and ropes[1] where some layers take another one.
void describe_layers(Config& c, const Family&, Layer layer, const Windows& = {}, const LayerSizes& = {});

} // namespace kvrun
