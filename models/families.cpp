// Model families: one row per architecture that files name.
#include "models/families.h"
#include "engine/core/error.h"
#include <cmath>

namespace kvrun {
namespace {

constexpr Experts kSigmoid = {.gating = Gating::Sigmoid};

constexpr Layer kGatedAttention = {
    .qk_norm = QkNorm::Head, .output_gate = true, .mlp_norm_name = "post_attention_norm"};
constexpr Layer with_experts(Layer l, Experts e) {
	l.experts = e;
	return l;
}

constexpr Family kFamilies[] = {
    {.arch = "llama", .mixture = true, .layer = {.experts = {.normalise = true}}},
    {.arch = "qwen2", .neox = true, .layer = {.qkv_bias = true}},
    {.arch = "qwen3", .neox = true, .layer = {.qk_norm = QkNorm::Head}},
    {.arch = "phi3",
     .neox = true,
     .partial_rotary = true,
     .strips_after_special = true,
     .layer = {.fused_qkv = true, .fused_gate_up = true}},
    {.arch = "afmoe",
     .neox = true,
     .scales_embedding = true,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head,
               .attn_out_norm = true,
               .output_gate = true,
               .gate_apart = true,
               .mlp_out_norm = true,
               .experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "apertus",
     .neox = true,
     .layer = {.qk_norm = QkNorm::Head, .mlp = MlpKind::Plain, .activation = Activation::Xielu}},
    {.arch = "arcee", .layer = {.mlp = MlpKind::Plain, .activation = Activation::Relu2}},
    {.arch = "bailingmoe2",
     .neox = true,
     .partial_rotary = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .fused_qkv = true, .experts = kSigmoid}},
    {.arch = "bailingmoe", .mixture = true},
    {.arch = "bailingmoe3",
     .partial_rotary = true,
     .mixture = true,
     .latent = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::ChannelDelta, .full_gates = true},
     .limits_mlp = true,
     .layer = {.output_gate = true, .gate_apart = true, .gate_by_head = true, .experts = kSigmoid}},
    {.arch = "chatglm", .partial_rotary = true, .layer = {.fused_gate_up = true}},
    {.arch = "command-r", .norm = NormKind::Layer, .layer = {.mlp_input = MlpInput::Parallel}},
    {.arch = "cohere2",
     .norm = NormKind::Layer,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .layer = {.mlp_input = MlpInput::Parallel}},
    {.arch = "cohere2moe",
     .norm = NormKind::Layer,
     .norm_by_key = true,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .full_first = true,
     .dense_rotated = true,
     .mixture = true,
     .layer = {.mlp_input = MlpInput::Parallel, .experts = {.gating = Gating::Sigmoid, .shared_mean = true}}},
    {.arch = "deci", .skips_parts = true},
    {.arch = "deepseek", .mixture = true},
    {.arch = "deepseek2", .partial_rotary = true, .mixture = true, .latent = true, .predicts = true},
    {.arch = "dots1", .neox = true, .mixture = true, .layer = {.qk_norm = QkNorm::Head, .experts = kSigmoid}},
    {.arch = "ernie4_5"},
    {.arch = "ernie4_5-moe", .mixture = true, .layer = {.experts = {.normalise = true}}},
    {.arch = "exaone4",
     .neox = true,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .layer = {.qk_norm = QkNorm::Head,
               .attn_norm = false,
               .attn_out_norm = true,
               .mlp_input = MlpInput::Raw,
               .mlp_out_norm = true}},
    {.arch = "exaone", .neox = true},
    {.arch = "exaone-moe",
     .neox = true,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .experts = kSigmoid}},
    {.arch = "falcon-h1",
     .neox = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::StateSpace, .beside = true},
     .layer = {.mlp_norm_bare = true}},
    {.arch = "gemma", .neox = true, .scales_embedding = true, .layer = {.activation = Activation::GeluTanh}},
    {.arch = "gemma2",
     .neox = true,
     .scales_embedding = true,
     .window_period = 2,
     .window = 4096,
     .score_softcap = 50,
     .logit_softcap = 30,
     .wide_scale_layers = 46,
     .layer = {.attn_out_norm = true, .activation = Activation::GeluTanh, .mlp_out_norm = true}},
    {.arch = "gemma3",
     .neox = true,
     .scales_embedding = true,
     .second_rope = SecondRope::OwnInWindow,
     .window_period = 6,
     .wide_scale_layers = 62,
     .layer =
         {.qk_norm = QkNorm::Head, .attn_out_norm = true, .activation = Activation::GeluTanh, .mlp_out_norm = true}},
    {.arch = "gemma3n",
     .neox = true,
     .scales_embedding = true,
     .second_rope = SecondRope::OwnInWindow,
     .window_period = 5,
     .shares_kv = true,
     .layer_inputs = true,
     .streams = true,
     .layer = {.attention_scale = 1,
               .qk_norm = QkNorm::Head,
               .attn_out_norm = true,
               .v_norm = true,
               .activation = Activation::GeluTanh,
               .mlp_out_norm = true}},
    {.arch = "gemma4",
     .neox = true,
     .scales_embedding = true,
     .second_rope = SecondRope::OwnInWindow,
     .window_period = 6,
     .shares_kv = true,
     .output_scales = true,
     .layer_inputs = true,
     .mixture = true,
     .layer = {.attention_scale = 1,
               .qk_norm = QkNorm::Head,
               .attn_out_norm = true,
               .v_norm = true,
               .activation = Activation::GeluTanh,
               .mlp_out_norm = true,
               .experts = {.normalise = true, .beside_mlp = true}}},
    {.arch = "glm4",
     .partial_rotary = true,
     .layer = {.attn_out_norm = true, .mlp_out_norm = true, .fused_gate_up = true}},
    {.arch = "glm4moe",
     .neox = true,
     .partial_rotary = true,
     .mixture = true,
     .optional_qk_norm = QkNorm::Head,
     .predicts = true,
     .layer = {.mlp_norm_name = "post_attention_norm", .experts = kSigmoid}},
    {.arch = "gpt-oss",
     .neox = true,
     .yarn_rounded = false,
     .window_period = 2,
     .mixture = true,
     .layer = {.sinks = true,
               .qkv_bias = true,
               .out_bias = true,
               .mlp_norm_name = "post_attention_norm",
               .experts = {.normalise = true, .router_bias = true, .bias = true, .clamped = true}}},
    {.arch = "granite", .divides_logits = true, .rope_use = RopeUse::IfFinetuned},
    {.arch = "granite_swa",
     .divides_logits = true,
     .rope_use = RopeUse::IfFinetuned,
     .second_rope = SecondRope::NoneByKey,
     .window_period = 4,
     .full_first = true,
     .mixture = true,
     .layer = {.sinks = true, .experts = {.normalise = true}}},
    {.arch = "granitehybrid",
     .divides_logits = true,
     .rope_use = RopeUse::IfFinetuned,
     .mixture = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::StateSpace},
     .layer = {.experts = {.normalise = true}}},
    {.arch = "granitemoe",
     .divides_logits = true,
     .rope_use = RopeUse::IfFinetuned,
     .mixture = true,
     .layer = {.experts = {.normalise = true}}},
    {.arch = "hunyuan-dense", .neox = true, .layer = {.qk_norm = QkNorm::HeadLast}},
    {.arch = "hunyuan-moe",
     .neox = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::HeadLast, .experts = {.normalise = true}}},
    {.arch = "hy_v3",
     .neox = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "internlm2"},
    {.arch = "jais2",
     .neox = true,
     .norm = NormKind::LayerBiased,
     .layer = {.mlp = MlpKind::Plain, .activation = Activation::Relu2, .mlp_bias = true}},
    {.arch = "kimi-linear",
     .partial_rotary = true,
     .rope_use = RopeUse::Never,
     .mixture = true,
     .latent = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::ChannelDelta},
     .layer = {.experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "laguna",
     .neox = true,
     .partial_rotary = true,
     .second_rope = SecondRope::OwnInWindow,
     .window_period = 4,
     .full_first = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head,
               .output_gate = true,
               .gate_apart = true,
               .gate_function = Activation::Softplus,
               .experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "lfm2",
     .neox = true,
     .final_norm = "token_embd_norm",
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::ShortConv},
     .layer = {.qk_norm = QkNorm::Head}},
    {.arch = "lfm2moe",
     .neox = true,
     .final_norm = "token_embd_norm",
     .mixture = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::ShortConv},
     .layer = {.qk_norm = QkNorm::Head, .experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "llama4",
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .chunks = true,
     .window = 8192,
     .tempered = true,
     .temperature = {.scale = 0.1f, .length = 8192, .offset = 1, .unrotated = true},
     .mixture = true,
     .unnormed_experts = 128,
     .layer = {.qk_norm = QkNorm::HeadUnit, .experts = {.gating = Gating::Sigmoid, .weigh_input = true}}},
    {.arch = "maincoder", .layer = {.qk_norm = QkNorm::HeadLast}},
    {.arch = "mamba2",
     .rope_use = RopeUse::Never,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::StateSpace},
     .all_recurrent = true,
     .layer = {.mlp = MlpKind::None, .mlp_input = MlpInput::Raw}},
    {.arch = "mellum",
     .neox = true,
     .second_rope = SecondRope::UnscaledInWindow,
     .window_period = 4,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .experts = {.normalise = true}}},
    {.arch = "minicpm", .minicpm_scales = true, .divides_logits = true},
    {.arch = "minicpm3",
     .neox = true,
     .partial_rotary = true,
     .minicpm_scales = true,
     .divides_logits = true,
     .latent = true},
    {.arch = "minimax-m2",
     .neox = true,
     .partial_rotary = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Row, .experts = {.gating = Gating::Sigmoid, .normalise = true}}},
    {.arch = "mistral3", .tempered = true},
    {.arch = "mistral4", .partial_rotary = true, .tempered = true, .mixture = true, .latent = true},
    {.arch = "muse-glimmer",
     .norms_embedding = true,
     .out_norm_eps = 1e-8f,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .layer = {.qk_norm = QkNorm::Head,
               .attn_out_norm = true,
               .output_gate = true,
               .gate_apart = true,
               .mlp_out_norm = true}},
    {.arch = "nanbeige", .rounds = true},
    {.arch = "nemotron",
     .neox = true,
     .partial_rotary = true,
     .norm = NormKind::LayerBiased,
     .layer = {.mlp = MlpKind::Plain, .activation = Activation::Relu2}},
    {.arch = "nemotron_h",
     .rope_use = RopeUse::Never,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::StateSpace},
     .single_parts = true,
     .layer = {.mlp = MlpKind::Plain, .activation = Activation::Relu2}},
    {.arch = "nemotron_h_moe",
     .rope_use = RopeUse::Never,
     .mixture = true,
     .recurrent = true,
     .recurrent_shape = {.kind = RecurrentKind::StateSpace},
     .single_parts = true,
     .layer = {.mlp = MlpKind::Plain, .activation = Activation::Relu2, .experts = kSigmoid}},
    {.arch = "olmo2",
     .neox = true,
     .second_rope = SecondRope::UnscaledInWindow,
     .window_period = 4,
     .layer = {.qk_norm = QkNorm::Row,
               .attn_norm = false,
               .attn_out_norm = true,
               .mlp_input = MlpInput::Raw,
               .mlp_out_norm = true}},
    {.arch = "olmoe", .neox = true, .mixture = true, .layer = {.qk_norm = QkNorm::Row}},
    {.arch = "paddleocr"},
    {.arch = "pangu-embedded", .neox = true, .layer = {.qkv_bias = true, .out_bias = true}},
    {.arch = "phi2",
     .neox = true,
     .partial_rotary = true,
     .norm = NormKind::LayerBiased,
     .output_bias = true,
     .layer = {.qkv_bias = true,
               .out_bias = true,
               .mlp = MlpKind::Plain,
               .activation = Activation::GeluTanh,
               .mlp_input = MlpInput::Parallel,
               .mlp_bias = true}},
    {.arch = "phimoe",
     .neox = true,
     .strips_after_special = true,
     .norm = NormKind::LayerBiased,
     .longrope_factor = 1.243163121f,
     .output_bias = true,
     .mixture = true,
     .layer = {.qkv_bias = true, .out_bias = true, .experts = {.gating = Gating::Near}}},
    {.arch = "qwen2moe", .neox = true, .mixture = true, .layer = {.qkv_bias = true}},
    // Of models that also read images, the part that reads text.
    {.arch = "qwen2vl", .neox = true, .layer = {.qkv_bias = true}},
    {.arch = "qwen3vl", .neox = true, .axes_interleaved = true, .layer = {.qk_norm = QkNorm::Head}},
    {.arch = "qwen3vlmoe",
     .neox = true,
     .axes_interleaved = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .experts = {.normalise = true}}},
    {.arch = "qwen3moe",
     .neox = true,
     .mixture = true,
     .layer = {.qk_norm = QkNorm::Head, .experts = {.normalise = true}}},
    {.arch = "qwen3next",
     .neox = true,
     .partial_rotary = true,
     .mixture = true,
     .predicts = true,
     .recurrent = true,
     .recurrent_shape = {.fused_gates = true},
     .layer = with_experts(kGatedAttention, {.normalise = true})},
    {.arch = "qwen35",
     .neox = true,
     .axes_interleaved = true,
     .partial_rotary = true,
     .predicts = true,
     .recurrent = true,
     .recurrent_shape = {.tiled = true},
     .layer = kGatedAttention},
    {.arch = "qwen35moe",
     .neox = true,
     .axes_interleaved = true,
     .partial_rotary = true,
     .mixture = true,
     .predicts = true,
     .recurrent = true,
     .recurrent_shape = {.tiled = true},
     .layer = with_experts(kGatedAttention, {.normalise = true})},
    {.arch = "seed_oss", .neox = true, .layer = {.qkv_bias = true, .mlp_norm_name = "post_attention_norm"}},
    {.arch = "smallthinker",
     .neox = true,
     .second_rope = SecondRope::NoneInFull,
     .window_period = 4,
     .full_first = true,
     .mixture = true,
     .layer = {.activation = Activation::Relu,
               .experts = {.gating = Gating::Sigmoid, .normalise = true, .early = true}}},
    {.arch = "smollm3", .second_rope = SecondRope::NoneEveryFourth},
    {.arch = "spark2_5",
     .neox = true,
     .partial_rotary = true,
     .second_rope = SecondRope::OwnInWindow,
     .layer = {.output_gate = true, .gate_apart = true, .activation = Activation::GeluTanh}},
    {.arch = "stablelm",
     .neox = true,
     .partial_rotary = true,
     .norm = NormKind::LayerBiased,
     .optional_qk_norm = QkNorm::HeadLayer,
     .parallel_optional = true},
    {.arch = "starcoder2",
     .neox = true,
     .norm = NormKind::LayerBiased,
     .layer = {.qkv_bias = true,
               .out_bias = true,
               .mlp = MlpKind::Plain,
               .activation = Activation::GeluTanh,
               .mlp_bias = true}},
    {.arch = "step35",
     .neox = true,
     .partial_rotary = true,
     .half_rotary = true,
     .second_rope = SecondRope::OwnInWindow,
     .mixture = true,
     .limits_mlp = true,
     .layer = {.qk_norm = QkNorm::Head, .output_gate = true, .gate_apart = true, .experts = kSigmoid}},
};

} // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view arch) {
	for (const Family& f : kFamilies)
		if (arch == f.arch) return &f;
	return nullptr;
}

std::string family_names(std::string_view between) {
	std::string out;
	for (const Family& f : kFamilies) {
		if (!out.empty()) out += between;
		out += f.arch;
	}
	return out;
}

bool has_window(const Family& f, const Windows& w, uint32_t l) {
	const bool by_period = f.window_period == 0 || (l + !f.full_first) % f.window_period != 0;
	return w.tokens && (w.layers.empty() ? by_period : w.layers[l]);
}

uint32_t first_full(const Family& f, const Windows& w, uint32_t n_layers) {
	for (uint32_t l = 0; l < n_layers; ++l)
		if (!has_window(f, w, l)) return l;
	return 0;
}

static void size_layers(Config& c, const LayerSizes& sizes) {
	const auto of = [](const std::vector<uint32_t>& each, uint32_t l, uint32_t all) {
		return each.empty() ? all : each[l];
	};
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		layer.n_heads = of(sizes.n_heads, l, c.n_heads), layer.n_kv_heads = of(sizes.n_kv_heads, l, c.n_kv_heads);
		layer.head_dim = layer.window && sizes.window_head_dim ? sizes.window_head_dim : c.head_dim;
		layer.hidden_dim = of(sizes.hidden_dim, l, c.hidden_dim);
		layer.kv_layer = l;
		const uint32_t own = c.n_layers - sizes.shared_kv; // layers with keys and values of their own
		for (uint32_t s = 0; l >= own && s < own; ++s)
			if (c.layers[s].window == layer.window) layer.kv_layer = s;
	}
}

void describe_layers(Config& c, const Family& f, Layer layer, const Windows& windows, const LayerSizes& sizes) {
	KV_ASSERT(c.ropes.size() == 1 && (windows.layers.empty() || windows.layers.size() == c.n_layers));
	if (layer.attention_scale == 0 && f.wide_scale_layers == c.n_layers)
		layer.attention_scale = 1 / std::sqrt(float(c.dim) / float(c.n_heads));
	c.layers.assign(c.n_layers, layer);
	bool second = false;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		if (has_window(f, windows, l)) c.layers[l].window = {windows.tokens, f.chunks};
		const bool window = bool(c.layers[l].window);
		switch (f.second_rope) {
		case SecondRope::None: break;
		case SecondRope::NoneEveryFourth: c.layers[l].rope = l % 4 == 3; break;
		case SecondRope::NoneInFull: c.layers[l].rope = windows.tokens && !window && l >= windows.rotated; break;
		case SecondRope::NoneByKey: c.layers[l].rope = !windows.positions.empty() && !windows.positions[l]; break;
		case SecondRope::OwnInWindow:
		case SecondRope::UnscaledInWindow: c.layers[l].rope = window; break;
		}
		second |= c.layers[l].rope != 0;
	}
	size_layers(c, sizes);
	if (!second) return;
	Rope other{.dim = sizes.window_rope_dim ? sizes.window_rope_dim : c.ropes[0].dim,
	           .theta = c.ropes[0].theta,
	           .neox = c.ropes[0].neox};
	if (f.second_rope == SecondRope::OwnInWindow) other.theta = windows.theta;
	other.rotates = f.second_rope == SecondRope::OwnInWindow || f.second_rope == SecondRope::UnscaledInWindow;
	c.ropes.push_back(std::move(other));
	for (Layer& l : c.layers)
		if (l.qk_norm == QkNorm::HeadUnit && !c.ropes[l.rope].rotates) l.qk_norm = QkNorm::None;
}

} // namespace kvrun
