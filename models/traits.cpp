// Traits of layers that a family leaves to its files.
#include "models/traits.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

static void see_mlp_input(const ConfigKeys& k, const Family& f, Layer& layer) {
	const auto is_mlp_norm = [](const GgufTensor& t) { return t.name.find(".ffn_norm.") != t.name.npos; };
	const char* key = "use_parallel_residual";
	switch (f.mlp_input_by) {
	case MlpInputBy::Family: break;
	case MlpInputBy::KeyAndNorm:
		if (k.flag(key, false) && std::ranges::none_of(k.g.tensors(), is_mlp_norm))
			layer.mlp_input = MlpInput::Parallel;
		break;
	case MlpInputBy::KeyOrNormed:
		if (!k.flag(key, true)) layer.mlp_input = MlpInput::Normed;
		break;
	case MlpInputBy::SecondNorm:
		if (!k.g.find_tensor("blk.0.attn_norm_2.weight")) break;
		layer.mlp_input = MlpInput::Beside;
		layer.attn_norm_name = "attn_norm_2", layer.mlp_norm_name = "attn_norm";
	}
}

static void see_activation(const ConfigKeys& k, Layer& layer) {
	const std::string_view name = k.g.text(k.key("hidden_activation"), "");
	constexpr std::pair<std::string_view, Activation> kNames[] = {{"gelu", Activation::Gelu},
	                                                              {"silu", Activation::Silu},
	                                                              {"gelu_pytorch_tanh", Activation::GeluTanh},
	                                                              {"relu2", Activation::Relu2}};
	const auto* known = std::ranges::find(kNames, name, [](const auto& x) { return x.first; });
	if (known != std::end(kNames))
		layer.activation = known->second;
	else if (!name.empty())
		fail(Code::Unsupported, "{}: key {} is {}; kvrun knows gelu silu gelu_pytorch_tanh relu2", k.g.name(),
		     k.key("hidden_activation"), one_line(name));
}

// Files of Jina's second embedding models differ: gate and up are in one tensor or in two, or there is no gate. The
// model for code has norms of queries and keys and a second norm behind attention, and in its tensor up comes first.
static void see_jina(const ConfigKeys& k, Layer& layer) {
	const auto has = [&](const char* tensor) { return k.g.find_tensor(tensor) != nullptr; };
	const GgufTensor *up = k.g.find_tensor("blk.0.ffn_up.weight"), *down = k.g.find_tensor("blk.0.ffn_down.weight");
	if (!has("blk.0.ffn_gate.weight") && up && down && up->rows() == down->cols()) layer.mlp = MlpKind::Plain;
	layer.fused_gate_up = !has("blk.0.ffn_gate.weight") && layer.mlp == MlpKind::Gated;
	layer.in_bias = has("blk.0.ffn_up.bias");
	layer.qk_norm_bias = layer.qk_norm != QkNorm::None && has("blk.0.attn_q_norm.bias");
	layer.sums_twice = layer.up_first = has("blk.0.attn_norm_2.weight");
}

void see_traits(const ConfigKeys& k, const Family& f, Layer& layer) {
	const auto has = [&](const char* tensor) { return k.g.find_tensor(tensor) != nullptr; };
	if (!f.recurrent && !f.latent) // files of any family have q, k and v in one tensor or in three, since 2026
		layer.fused_qkv = has("blk.0.attn_qkv.weight") || (layer.fused_qkv && !has("blk.0.attn_q.weight"));
	layer.qkv_bias |= has(layer.fused_qkv ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
	const GgufTensor *gate = k.g.find_tensor("blk.0.attn_gate.weight"),
	                 *out = k.g.find_tensor("blk.0.attn_output.weight");
	layer.gate_by_head |= layer.gate_apart && gate && out && gate->rows() < out->cols();
	if (f.optional_gate && !gate) layer.output_gate = layer.gate_apart = false, layer.attn_gain = 1;
	layer.out_bias |= has("blk.0.attn_output.bias");
	layer.mlp_bias |= has("blk.0.ffn_down.bias");
	if (f.optional_qk_norm != QkNorm::None && has("blk.0.attn_q_norm.weight")) layer.qk_norm = f.optional_qk_norm;
	if (f.encodes || f.activation_by_key) see_activation(k, layer);
	if (layer.alibi) see_jina(k, layer);
	see_mlp_input(k, f, layer);
	if (const char* key = "attention.value_expert_count"; !f.value_experts && k.u32(key, 0))
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without experts of values", k.g.name(), k.key(key),
		     k.u32(key), f.arch);
	if (f.unnormed_experts && k.u32("expert_count", 0) == f.unnormed_experts) layer.qk_norm = QkNorm::None;
}

NormKind see_norm(const ConfigKeys& k, const Family& f) {
	return f.norm_by_key && k.f32("attention.layer_norm_rms_epsilon", 0) != 0 ? NormKind::Rms : f.norm;
}

// A yes or no for each layer; empty: the file does not say it.
static std::vector<bool> flags_of_layers(const ConfigKeys& k, const char* key, uint32_t n_layers) {
	std::vector<bool> out;
	if (!k.has(key)) return out;
	for (const int64_t x : k.g.ints(k.key(key))) out.push_back(x != 0);
	if (out.size() != n_layers)
		fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", k.g.name(),
		     k.key(key), out.size(), n_layers);
	return out;
}

Windows read_windows(const ConfigKeys& k, const Family& f, uint32_t n_layers) {
	Windows w;
	w.tokens = k.u32("attention.sliding_window", f.window);
	w.theta = k.f32("rope.freq_base_swa", k.f32("rope.local.freq_base", w.theta)); // Ollama's files have the second
	const char* pattern = "attention.sliding_window_pattern";
	const GgufEntry* e = k.g.find(k.key(pattern));
	if (f.second_rope == SecondRope::NoneByKey) w.positions = flags_of_layers(k, "attention.rope_pattern", n_layers);
	if (f.dense_rotated) w.rotated = k.u32("leading_dense_block_count", 0);
	if (!w.tokens || !e) return w;
	if (e->type != GgufType::Array) {
		const uint32_t period = k.u32(pattern);
		for (uint32_t l = 0; l < n_layers; ++l) w.layers.push_back(period == 0 || (l + !f.full_first) % period != 0);
		return w;
	}
	w.layers = flags_of_layers(k, pattern, n_layers);
	return w;
}

// A number for each layer, or one for all. A list may be longer by `extra`, for layers that are ignored.
static std::vector<float> of_layers(const Gguf& g, const std::string& key, uint32_t n_layers, uint32_t extra = 0) {
	const GgufEntry* e = g.find(key);
	if (!e || e->type != GgufType::Array) return std::vector<float>(n_layers, g.f32(key));
	std::vector<float> v = g.floats(key);
	if (v.size() == n_layers + extra) v.resize(n_layers);
	if (v.size() != n_layers)
		fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", g.name(), key,
		     v.size(), n_layers);
	for (uint32_t l = 0; l < n_layers; ++l)
		if (!std::isfinite(v[l]))
			fail(Code::Format, "{}: key {} is {} for layer {}; the file is damaged", g.name(), key, v[l], l);
	return v;
}

static void read_caps(const ConfigKeys& k, Config& c) {
	const char *gate = "activation.situ_beta", *up = "activation.situ_linear_beta";
	const float gate_cap = k.g.f32(k.key(gate)), up_cap = k.g.f32(k.key(up));
	if (!(gate_cap > 0))
		fail(Code::Format, "{}: key {} is {}, expected more than 0; the file is damaged", k.g.name(), k.key(gate),
		     gate_cap);
	for (Layer& l : c.layers) l.gate_cap = gate_cap, l.up_cap = std::max(up_cap, 0.f);
}

void read_limits(const ConfigKeys& k, const Family& f, Config& c) {
	if (f.caps_mlp) read_caps(k, c);
	if (!f.limits_mlp) return;
	const auto read = [&](const char* key) {
		if (!k.has(key)) return std::vector<float>(c.n_layers, kUnlimited);
		std::vector<float> v = of_layers(k.g, k.key(key), c.n_layers, k.u32("block_count") - c.n_layers);
		for (float& x : v) {
			if (x < 0)
				fail(Code::Format, "{}: key {} is {} for a layer; the file is damaged", k.g.name(), k.key(key), x);
			if (x == 0) x = kUnlimited;
		}
		return v;
	};
	const std::vector<float> experts = read("swiglu_clamp_exp"), others = read("swiglu_clamp_shexp");
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		if (c.layers[l].experts.n) c.layers[l].experts.limit = experts[l];
		c.layers[l].mlp_limit = others[l];
	}
}

void skip_parts(const ConfigKeys& k, Config& c) {
	// In c.layers other layers' sizes stand in place of 0.
	const auto of = [&](const char* key) { return k.u32_each(key, c.n_layers, k.u32("block_count")); };
	const std::vector<uint32_t> heads = of("attention.head_count"), kv_heads = of("attention.head_count_kv"),
	                            hidden = of("feed_forward_length");
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		if (heads[l] && !kv_heads[l])
			fail(Code::Unsupported,
			     "{}: layer {} has {} heads without keys and values (linear attention); kvrun runs {} without it",
			     k.g.name(), l, heads[l], k.arch);
		if (!heads[l]) layer.mixes = layer.attn_norm = false;
		if (!hidden[l]) layer.mlp = MlpKind::None, layer.mlp_input = MlpInput::Raw;
	}
}

void repeat_layers(const ConfigKeys& k, const Family& f, Config& c) {
	constexpr uint32_t kMost = 64, kMostLayers = 4096;
	const uint32_t rounds = f.rounds ? k.u32("num_loops", 1) : 1, own = c.n_layers;
	if (rounds < 1 || rounds > kMost)
		fail(Code::Format, "{}: key {} is {}, expected 1 to {}; the file is damaged", k.g.name(), k.key("num_loops"),
		     rounds, kMost);
	if (rounds > 1 && uint64_t(rounds) * own > kMostLayers)
		fail(Code::Format, "{}: {} layers repeated {} times, at most {} are possible; the file is damaged", k.g.name(),
		     own, rounds, kMostLayers);
	const bool normed = rounds > 1 && !k.flag("skip_loop_final_norm", false);
	c.rounds = rounds, c.n_layers = rounds * own;
	for (uint32_t l = own; l < c.n_layers; ++l) {
		Layer again = c.layers[l - own];
		again.kv_layer += own, again.ends_round = false;
		if (l % own == 0) c.layers.back().ends_round = normed;
		c.layers.push_back(std::move(again));
	}
}

void read_xielu(const ConfigKeys& k, Config& c) {
	if (c.layers[0].activation != Activation::Xielu) return;
	const auto read = [&](const char* key) { return of_layers(k.g, key, c.n_layers); };
	const std::vector<float> positive = read("xielu.alpha_p"), negative = read("xielu.alpha_n"),
	                         linear = read("xielu.beta"), limit = read("xielu.eps");
	for (uint32_t l = 0; l < c.n_layers; ++l) // the file has what training changes: softplus keeps factors positive
		c.layers[l].xielu = {float(softplus(double(positive[l]))),
		                     float(double(linear[l]) + softplus(double(negative[l]))), linear[l], limit[l]};
}

} // namespace kvrun
