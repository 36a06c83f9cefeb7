// GGUF metadata -> Config: sizes, cross-checks and one list of tensors. Differences between families: families.cpp.
#include "models/config.h"
#include "engine/core/block_quant.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "models/compressed.h"
#include "models/config_keys.h"
#include "models/draft_file.h"
#include "models/experts.h"
#include "models/families.h"
#include "models/fusion.h"
#include "models/hyper_streams.h"
#include "models/indexer.h"
#include "models/latent.h"
#include "models/layer_inputs.h"
#include "models/prediction.h"
#include "models/recurrent.h"
#include "models/rope_axes.h"
#include "models/streams.h"
#include "models/text_encoder.h"
#include "models/traits.h"
#include "models/weight_factors.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <unordered_set>

namespace kvrun {
namespace {

constexpr uint32_t kHeadDimStep = 8, kMaxHeadDim = 512; // limits of attention on every backend

const Family& family_of(const Gguf& g) {
	const std::string_view arch = g.text("general.architecture");
	if (const Family* f = find_family(arch)) return *f;
	if (arch == "clip")
		fail(Code::Unsupported, "{} is an encoder of images or sound and no model; give a vision encoder with --mmproj",
		     g.name());
	fail(Code::Unsupported, "{}: architecture is {}; kvrun runs {}", g.name(), one_line(arch), family_names());
}

using Keys = ConfigKeys;

const char* eps_key(const Keys& k, const Config& c) {
	const char *rms = "attention.layer_norm_rms_epsilon", *other = "attention.layer_norm_epsilon";
	if (!is_rms(c.norm)) std::swap(rms, other);
	return k.has(rms) || !k.has(other) ? rms : other;
}

void read_layer_count(const Keys& k, const Family& f, Config& c) {
	c.n_layers = k.u32("block_count");
	if (c.n_layers == 0) fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(), k.key("block_count"));
	if (f.alibi_layers == c.n_layers)
		fail(Code::Unsupported, "{}: key {} is {}: models of {} of this size have ALiBi, which kvrun does not run",
		     k.g.name(), k.key("block_count"), c.n_layers, f.arch);
	// draft layers behind the model's own; ignored
	const uint32_t extra = f.drafts != DraftKind::None ? 0
	                       : f.compressed              ? draft_layers(k)
	                                                   : k.u32("nextn_predict_layers", 0);
	if (extra != 0 && extra >= c.n_layers)
		fail(Code::Format, "{}: key {} is {}, the model has {} layers; the file is damaged", k.g.name(),
		     k.key("nextn_predict_layers"), extra, c.n_layers);
	if (c.n_layers > k.g.tensors().size())
		fail(Code::Format, "{}: key {} is {}, the file has {} tensors; the file is damaged", k.g.name(),
		     k.key("block_count"), c.n_layers, k.g.tensors().size());
	c.n_layers -= extra;
}

// full: the layer from which the config takes its sizes.
void read_sizes(const Keys& k, const Family& f, Config& c, uint32_t full, LayerSizes& sizes) {
	c.dim = k.u32("embedding_length");
	const auto of_layers = [&](const char* key, bool zeros = false, uint32_t unused = 0) {
		std::vector<uint32_t> all = k.u32_each(key, c.n_layers, k.u32("block_count"));
		const uint32_t most = std::ranges::max(all);
		if (zeros) std::ranges::replace(all, 0u, most ? most : unused);
		if (std::ranges::find(all, 0u) != all.end())
			fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(), k.key(key));
		return all;
	};
	if (f.all_recurrent) { // keys of heads are 0, and those of MLPs where there is none; such a head has no tensors
		c.hidden_dim = f.layer.mlp == MlpKind::None ? c.dim : of_layers("feed_forward_length")[0];
		c.n_heads = c.n_kv_heads = 1, c.head_dim = kHeadDimStep;
		c.max_seq = k.u32("context_length");
		c.norm_eps = k.g.f32(k.key(eps_key(k, c)));
		for (const auto& [name, value] : {std::pair{"embedding_length", c.dim}, {"context_length", c.max_seq}})
			if (value == 0) fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(), k.key(name));
		return;
	}
	const bool experts_only = !k.has("feed_forward_length") && k.has("expert_feed_forward_length");
	sizes.hidden_dim = of_layers(experts_only ? "expert_feed_forward_length" : "feed_forward_length",
	                             f.single_parts || f.skips_parts, f.single_parts ? c.dim : 0);
	if (f.hidden_halved)
		for (uint32_t& n : sizes.hidden_dim) n /= 2;
	sizes.n_heads = of_layers("attention.head_count", f.skips_parts);
	sizes.n_kv_heads = k.has("attention.head_count_kv")
	                       ? of_layers("attention.head_count_kv", attends_by_kv_heads(f) || f.skips_parts)
	                       : sizes.n_heads;
	c.hidden_dim = sizes.hidden_dim[full], c.n_heads = sizes.n_heads[full], c.n_kv_heads = sizes.n_kv_heads[full];
	c.max_seq = k.u32("context_length");
	c.norm_eps = k.g.f32(k.key(eps_key(k, c)));
	for (const auto& [name, value] : {std::pair{"embedding_length", c.dim}, {"context_length", c.max_seq}})
		if (value == 0) fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(), k.key(name));
	if (!k.has("attention.key_length") && c.dim % c.n_heads != 0)
		fail(Code::Format, "{}: {} channels do not divide into {} heads; the file is damaged", k.g.name(), c.dim,
		     c.n_heads);
	c.head_dim = k.u32("attention.key_length", c.dim / c.n_heads);
}

// Sizes of windowed layers where they differ, and the number of layers that share keys and values of an earlier one.
void read_window_sizes(const Keys& k, const Family& f, const Config& c, const Windows& w, LayerSizes& sizes) {
	const uint32_t key_length = k.u32("attention.key_length_swa", c.head_dim),
	               value_length = k.u32("attention.value_length_swa", key_length);
	if (key_length != value_length)
		fail(Code::Unsupported,
		     "{}: keys of layers with a window have {} channels per head, values {}; kvrun runs models where they are "
		     "equal",
		     k.g.name(), key_length, value_length);
	if (w.tokens) sizes.window_head_dim = key_length;
	if (w.tokens && f.second_rope == SecondRope::OwnInWindow) {
		const uint32_t all = key_length == c.head_dim ? c.ropes[0].dim * (f.half_rotary ? 2 : 1) : key_length;
		sizes.window_rope_dim = k.u32("rope.dimension_count_swa", all);
	}
	if (!f.shares_kv) return;
	sizes.shared_kv = k.u32("attention.shared_kv_layers", 0);
	uint32_t own[2] = {}, all[2] = {}; // layers without and with a window
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		const bool window = has_window(f, w, l);
		++all[window];
		if (l + uint64_t(sizes.shared_kv) < c.n_layers) ++own[window];
	}
	if ((all[0] && !own[0]) || (all[1] && !own[1]))
		fail(Code::Format,
		     "{}: key {} is {}: of {} layers, these last ones find no layer of their kind whose keys and values they "
		     "could share; the file is damaged",
		     k.g.name(), k.key("attention.shared_kv_layers"), sizes.shared_kv, c.n_layers);
}

// The checks that need no tensor. Shapes are checked against tensor_specs() later, which ties every size to the data.
void check_sizes(const Keys& k, const Family& f, const Config& c) {
	const std::string& name = k.g.name();
	const uint32_t value_dim = k.u32("attention.value_length", c.head_dim);
	// Of files with attn_kv_b it is the length of heads, which read_latent() checked; of kimi-linear nothing reads it.
	const bool other = f.latent && (f.recurrent || (k.g.splits_latents() && !k.has("attention.key_length_mla")));
	const bool narrow = f.narrow_values && value_dim % kHeadDimStep == 0 && value_dim && value_dim < c.head_dim;
	if (value_dim != c.head_dim && !other && !narrow)
		fail(Code::Unsupported, "{}: keys have {} channels per head, values {}; kvrun runs models where they are equal",
		     name, c.head_dim, value_dim);
	if (!(c.norm_eps >= 0 && c.norm_eps < 1))
		fail(Code::Format, "{}: key {} is {}, expected 0 to 1; the file is damaged", name, k.key(eps_key(k, c)),
		     c.norm_eps);
	if (c.norm_groups == 0 || c.norm_groups > c.dim || c.dim % c.norm_groups != 0)
		fail(Code::Format, "{}: key {} is {}, rows have {} channels; the file is damaged", name,
		     k.key("attention.group_norm_groups"), c.norm_groups, c.dim);
	if (!(c.ropes[0].theta > 1))
		fail(Code::Format, "{}: key {} is {}, expected more than 1; the file is damaged", name, k.key("rope.freq_base"),
		     c.ropes[0].theta);
}

// Checks one layer's sizes; layers may differ.
void check_layer(const Keys& k, const Family& f, const Config& c, const Layer& l) {
	const std::string& name = k.g.name();
	constexpr uint64_t kMost = UINT32_MAX / 4; // sums of a few rows stay in 32 bits
	if (l.n_heads % l.n_kv_heads != 0)
		fail(Code::Format, "{}: {} heads cannot share {} key/value heads evenly; the file is damaged", name, l.n_heads,
		     l.n_kv_heads);
	if (l.head_dim == 0 || l.head_dim % kHeadDimStep != 0 || l.head_dim > kMaxHeadDim)
		fail(Code::Unsupported, "{}: heads have {} channels; kvrun runs multiples of {} up to {}", name, l.head_dim,
		     kHeadDimStep, kMaxHeadDim);
	const Rope& rope = c.ropes[l.rope];
	if (rope.dim < 2 || rope.dim % 2 != 0 || rope.dim > l.head_dim || (!f.partial_rotary && rope.dim != l.head_dim))
		fail(Code::Format, "{}: key {} is {}, heads have {} channels; the file is damaged", name,
		     k.key(l.rope && c.ropes[0].dim != rope.dim ? "rope.dimension_count_swa" : "rope.dimension_count"),
		     rope.dim, l.head_dim);
	if (uint64_t(l.n_heads) * l.head_dim > kMost || l.hidden_dim > kMost || c.dim > kMost)
		fail(Code::Format, "{}: {} heads of {} channels, {} hidden, {} wide: too large; the file is damaged", name,
		     l.n_heads, l.head_dim, l.hidden_dim, c.dim);
	const auto alike = [&](const Layer& x) {
		return x.n_heads == l.n_heads && x.n_kv_heads == l.n_kv_heads && x.head_dim == l.head_dim;
	};
	for (const Layer& x : c.layers) // pages of a cache are of one size
		if (x.mixes && l.mixes && x.window == l.window && !alike(x))
			fail(
			    Code::Unsupported,
			    "{}: layers {} a window have {} heads, {} key/value heads of {} channels, and {}, {} of {}; kvrun runs "
			    "models where these layers are equal",
			    name, l.window ? "with" : "without", l.n_heads, l.n_kv_heads, l.head_dim, x.n_heads, x.n_kv_heads,
			    x.head_dim);
}

// A list of one positive factor per rotated pair; empty when the file has no such tensor.
std::vector<float> read_factors(const Gguf& g, const char* tensor, uint32_t rope_dim) {
	const GgufTensor* t = g.find_tensor(tensor);
	if (!t) return {};
	const uint64_t n = rope_dim / 2;
	if (t->cols() != n || t->rows() != 1)
		fail(Code::Format, "{}: tensor {} has {} x {} elements, the config says {}; wrong or damaged file", g.name(),
		     tensor, t->rows(), t->cols(), n);
	std::vector<std::byte> bytes(t->bytes);
	g.read(*t, 0, bytes);
	std::vector<float> out(n);
	dequantise_row(t->type, bytes.data(), out.data(), n);
	for (uint64_t i = 0; i < n; ++i)
		if (!(out[i] > 0 && std::isfinite(out[i])))
			fail(Code::Format, "{}: tensor {}: element {} is {}, expected more than 0; the file is damaged", g.name(),
			     tensor, i, out[i]);
	return out;
}

void read_rope(const Keys& k, const Family& f, const Latent& latent, Config& c) {
	c.ropes = {{.dim = k.u32("rope.dimension_count", c.head_dim),
	            .theta = k.f32("rope.freq_base", k.f32("rope.global.freq_base", 10000)),
	            .neox = f.neox}};
	if (f.half_rotary) c.ropes[0].dim /= 2;
	if (f.rope_use == RopeUse::Never) c.ropes[0].rotates = false;
	if (f.rope_use == RopeUse::Never) c.ropes[0].dim = f.latent ? latent.rope_dim : c.head_dim;
	if (f.rope_use == RopeUse::IfFinetuned) c.ropes[0].rotates = k.flag("rope.scaling.finetuned", true);
	read_axes(k, f, c.ropes[0]);
}

RopeScaling scaling_type(const Keys& k, const Rope& r) {
	const std::string key = k.key("rope.scaling.type");
	const bool factor = k.has("rope.scaling.factor") || k.has("rope.scale_linear");
	const std::string_view type = k.g.text(key, factor ? "linear" : "none");
	if (!r.long_freqs.empty() && (type == "none" || type == "longrope")) return RopeScaling::LongRope;
	for (RopeScaling s :
	     {RopeScaling::None, RopeScaling::Linear, RopeScaling::Llama3, RopeScaling::Yarn, RopeScaling::LongRope})
		if (type == rope_scaling_name(s)) return s;
	fail(Code::Unsupported, "{}: key {} is {}; kvrun knows none linear llama3 yarn longrope", k.g.name(), key,
	     one_line(type));
}

void read_rope_scaling(const Keys& k, const Family& f, Config& c) {
	Rope& r = c.ropes[0];
	r.freqs = read_factors(k.g, "rope_freqs.weight", r.dim);
	r.long_freqs = read_factors(k.g, "rope_factors_long.weight", r.dim);
	r.short_freqs = read_factors(k.g, "rope_factors_short.weight", r.dim);
	r.scaling = scaling_type(k, r);
	if (r.scaling == RopeScaling::Llama3 && !r.freqs.empty()) r.scaling = RopeScaling::None; // freqs are scaled
	if (r.scaling == RopeScaling::None) return;
	r.factor = k.f32("rope.scaling.factor", k.f32("rope.scale_linear", 1));
	if (r.factor == 0) r.factor = 1; // some files write 0 for "no scaling"
	if (!(r.factor > 0))
		fail(Code::Format, "{}: the factor of the rope scaling is {}; the file is damaged", k.g.name(), r.factor);
	if (r.scaling == RopeScaling::Linear) return;

	r.original_ctx = k.u32("rope.scaling.original_context_length", c.max_seq);
	if (r.original_ctx == 0)
		fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(),
		     k.key("rope.scaling.original_context_length"));
	if (r.scaling == RopeScaling::Llama3) {
		r.low_freq = k.positive("rope.scaling.low_freq_factor", r.low_freq);
		r.high_freq = k.positive("rope.scaling.high_freq_factor", r.high_freq);
		if (r.high_freq <= r.low_freq)
			fail(Code::Format,
			     "{}: rope scaling: high_freq_factor {} is not above low_freq_factor {}; the file is damaged",
			     k.g.name(), r.high_freq, r.low_freq);
	} else if (r.scaling == RopeScaling::Yarn) {
		r.ramp_rounded = f.yarn_rounded;
		r.beta_fast = k.positive("rope.scaling.yarn_beta_fast", r.beta_fast);
		r.beta_slow = k.positive("rope.scaling.yarn_beta_slow", r.beta_slow);
		// Converters write attention_factor of config.json under either key; it already contains YaRN's own factor.
		const float own = r.factor > 1 ? 1 + 0.1f * std::log(r.factor) : 1;
		for (const char* key : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"})
			if (const float x = k.positive(key, 1); std::abs(x - own) > 1e-3f * own) r.attn_factor *= x;
		const float log_multiplier = k.f32("rope.scaling.yarn_log_multiplier", 0); // reduces YaRN's own factor
		if (log_multiplier != 0 && r.factor > 1)
			r.attn_factor /= 1 + 0.1f * k.positive("rope.scaling.yarn_log_multiplier", 1) * std::log(r.factor);
	} else {
		if (r.long_freqs.empty() || r.short_freqs.empty())
			fail(
			    Code::Format,
			    "{}: longrope needs tensors rope_factors_long.weight and rope_factors_short.weight; get the file again",
			    k.g.name());
		const double s = double(c.max_seq) / r.original_ctx;
		const bool extended = s > 1 && r.original_ctx > 1;
		const double scale = extended ? std::sqrt(1 + std::log(s) / std::log(double(r.original_ctx))) : 1;
		r.attn_factor = k.positive("rope.scaling.attn_factor", float(scale));
		if (f.longrope_factor) r.attn_factor = f.longrope_factor;
	}
}

// Soft cap of scores or logits; 0: none.
float read_softcap(const Keys& k, const char* key, float of_family) {
	if (!k.has(key)) return of_family;
	return k.f32(key, 0) == 0 ? 0 : k.positive(key, 1);
}

// Factors that few families use; files of other families may have the keys too.
void read_scales(const Keys& k, const Family& f, Config& c, Layer& layer) {
	// scale_emb, scale_depth and dim_model_base of MiniCPM 2B to 4B (config.json)
	const bool mini = f.minicpm_scales;
	const float residual = mini ? 1.4f / std::sqrt(float(c.n_layers)) : 1, logits = mini ? float(c.dim) / 256 : 1;
	c.embedding_scale = k.positive("embedding_scale", f.scales_embedding ? std::sqrt(float(c.dim)) : mini ? 12 : 1);
	c.embedding_norm = f.norms_embedding;
	c.out_norm_eps = f.out_norm_eps;
	c.logit_scale = k.positive("logit_scale", logits);
	if (f.divides_logits) c.logit_scale = 1 / c.logit_scale;
	c.logit_softcap = read_softcap(k, "final_logit_softcapping", f.logit_softcap);
	layer.residual_scale = k.positive("residual_scale", residual);
	if (k.has("attention.scale")) layer.attention_scale = k.positive("attention.scale", 1);
	if (f.narrow_values) layer.attn_gain = k.positive("attention.value_scale", 1);
	if (k.f32("attention.clamp_kqv", 0) != 0) layer.qkv_limit = k.positive("attention.clamp_kqv", 1);
	layer.score_softcap = read_softcap(k, "attn_logit_softcapping", f.score_softcap);
	for (const char* key : {"attention.temperature_scale", "residual_softcap"})
		if (k.has(key) && k.f32(key, 0) != 0 && !(f.tempered && key == std::string_view("attention.temperature_scale")))
			fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without it", k.g.name(), k.key(key), k.f32(key, 0),
			     f.arch);
}

// The only element of a tensor.
float read_number(const Gguf& g, const std::string& tensor) {
	const GgufTensor* t = g.find_tensor(tensor);
	if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", g.name(), tensor);
	float x = NAN;
	if (t->type == DType::F32 && t->rows() * t->cols() == 1) g.read(*t, 0, std::as_writable_bytes(std::span(&x, 1)));
	if (!std::isfinite(x))
		fail(Code::Format, "{}: tensor {} is not a finite number in F32; wrong or damaged file", g.name(), tensor);
	return x;
}

// Traits that only tensors show: whether values are keys (as in the first layer of the same kind), and factors.
void look_at_layers(const Gguf& g, const Family& f, Config& c) {
	const auto tensor = [](uint32_t l, const char* what) { return fmt::format("blk.{}.{}.weight", l, what); };
	const Layer* first[2] = {};
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		const Layer*& of_kind = first[bool(layer.window)];
		if (!of_kind) {
			layer.v_is_k = layer.v_norm && !g.find_tensor(tensor(l, "attn_v"));
			of_kind = &layer;
		}
		layer.v_is_k = of_kind->v_is_k;
		if (f.first_unnormed && l == 0) layer.attn_norm = g.find_tensor(tensor(l, "attn_norm")) != nullptr;
		if (f.gains) {
			layer.attn_gain = read_number(g, fmt::format("blk.{}.attn_output.scale", l));
			layer.mlp_gain = read_number(g, fmt::format("blk.{}.ffn_down.scale", l));
			layer.embedding_gain = read_number(g, tensor(l, "layer_output_scale"));
		}
		if (!f.output_scales) continue;
		const std::vector<float> scale = read_factors(g, tensor(l, "layer_output_scale").c_str(), 2);
		if (!scale.empty()) layer.output_scale = scale[0];
	}
}

void read_temperature(const Keys& k, const Family& f, Config& c) {
	const float scale = k.f32("attention.temperature_scale", f.temperature.scale);
	if (!f.tempered || scale == 0) return;
	c.temperature = f.temperature;
	c.temperature.scale = k.positive("attention.temperature_scale", scale);
	const bool own = f.temperature.length != 0 || k.has("attention.temperature_length");
	const char* key = own ? "attention.temperature_length" : "rope.scaling.original_context_length";
	c.temperature.length = k.u32(key, own ? f.temperature.length : c.max_seq);
	if (c.temperature.length == 0) fail(Code::Format, "{}: key {} is 0; the file is damaged", k.g.name(), k.key(key));
}

bool is_of_prediction(std::string_view tensor, uint64_t layer, const Keys& k, const Config& c) {
	return tensor.find(".nextn.") != tensor.npos || (layer >= c.n_layers && layer < k.u32("block_count"));
}

// Tensors that text generation does not need: vision, audio, prediction of several tokens, keys and values of layers
// that use those of another.
bool is_left_aside(std::string_view tensor, uint64_t layer, const Keys& k, const Config& c) {
	for (const char* prefix : {"v.", "a.", "mm.", "mtp."})
		if (tensor.starts_with(prefix)) return true;
	if (layer < c.n_layers && tensor.starts_with("blk.") && !has_own_kv(c, uint32_t(layer))) // keys and values not used
		for (const char* part : {".attn_k.", ".attn_v.", ".attn_k_norm."})
			if (tensor.find(part) != tensor.npos) return true;
	if (tensor.ends_with(".input_scale")) return true; // for activations of 4 bits
	if (layer < c.n_layers && !has_indexer(c, uint32_t(layer)) && tensor.find(".indexer.") != tensor.npos) return true;
	return is_of_prediction(tensor, layer, k, c);
}

// A number of layers that is not that of the tensors; else each of them would be named as missing, or as not known.
void check_layer_count(const Keys& k, const std::vector<TensorSpec>& specs, const Config& c) {
	const uint32_t said = k.u32("block_count");
	std::set<uint64_t> layers = {0};
	for (const GgufTensor& t : k.g.tensors())
		if (t.name.find(".nextn.") == t.name.npos) layers.insert(layer_of_tensor(t.name));
	const uint64_t last = *layers.rbegin();
	uint64_t next = said; // not of one tensor with a wrong name
	while (layers.contains(next)) ++next;
	const bool more = last >= said && next > last;
	const bool fewer = last < c.n_layers - 1 &&
	                   std::ranges::any_of(specs, [&](const TensorSpec& s) { return layer_of_tensor(s.name) > last; });
	if (more || fewer)
		fail(Code::Format, "{}: key {} is {}, and the file has tensors of {} layers; wrong or damaged file", k.g.name(),
		     k.key("block_count"), said, last + 1);
}

// Tensors that the config does not list: harmless ones are logged once; one that would change the result is refused.
void check_extra_tensors(const Keys& k, const std::vector<TensorSpec>& specs, const Config& c) {
	const Gguf& g = k.g;
	std::unordered_set<std::string_view> used = {"rope_freqs.weight", "rope_factors_long.weight",
	                                             "rope_factors_short.weight"};
	std::vector<std::string> factors;
	for (const TensorSpec& s : specs) {
		used.insert(s.name);
		if (s.matrix && check_weight_factors(g, s.name, s.depth)) factors.push_back(weight_factors_name(s.name));
	}
	used.insert(factors.begin(), factors.end());
	if (c.ngrams.longest) used.insert(kNGramTable);
	const Family& family = *find_family(c.arch);
	if (const FusedFormat* fused = fused_format(family.drafts)) used.insert(fused->unused.begin(), fused->unused.end());
	const auto is_used = [&](std::string_view name) {
		const bool gain = family.gains && (name.ends_with(".attn_output.scale") || name.ends_with(".ffn_down.scale"));
		const bool scale = (family.gains || family.output_scales) && name.ends_with(".layer_output_scale.weight");
		return used.contains(name) || ((gain || scale) && layer_of_tensor(name) < c.n_layers);
	};
	std::string_view first;
	size_t n = 0;
	for (const GgufTensor& t : g.tensors()) {
		if (is_used(t.name) || (c.first_values && t.name.starts_with("blk.0.time_mix_v")))
			continue;                                                                             // layer 0 has dummies
		if (family.predicts && is_of_prediction(t.name, layer_of_tensor(t.name), k, c)) continue; // read_prediction()
		if (!is_left_aside(t.name, layer_of_tensor(t.name), k, c)) {
			if (t.name.ends_with(".bias") || t.name.ends_with(".scale") || is_expert_tensor(t.name) ||
			    (t.name.starts_with("blk.") && t.name.ends_with("_norm.weight")))
				fail(Code::Unsupported, "{}: tensor {} belongs to a variant of {} that kvrun does not run", g.name(),
				     one_line(t.name), c.arch);
			if (layer_of_tensor(t.name) >= c.n_layers)
				fail(Code::Format,
				     "{}: tensor {} belongs to a layer beyond the {} the config says; wrong or damaged file", g.name(),
				     one_line(t.name), c.n_layers);
		}
		if (n++ == 0) first = t.name;
	}
	if (n > 0)
		warn_once(fmt::format("{}: {} tensor{} not used, the first is {}", g.name(), n, n == 1 ? " is" : "s are",
		                      one_line(first)));
}

void check_vocab(const Gguf& g, const Keys& k, Config& c) {
	const GgufTensor* embed = g.find_tensor("token_embd.weight");
	if (!embed)
		fail(Code::Format, "{}: tensor token_embd.weight is missing; a vocabulary-only file cannot be run", g.name());
	if (embed->rows() > UINT32_MAX)
		fail(Code::Format, "{}: tensor token_embd.weight has {} rows; the file is damaged", g.name(), embed->rows());
	c.vocab = uint32_t(embed->rows());
	const uint32_t said = k.u32("vocab_size", c.vocab);
	if (said != c.vocab)
		fail(Code::Format, "{}: key {} is {}, the embedding has {} rows; the file is damaged", g.name(),
		     k.key("vocab_size"), said, c.vocab);
}

} // namespace

uint64_t layer_of_tensor(std::string_view name) {
	if (!name.starts_with("blk.")) return 0;
	uint64_t l = 0;
	const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), l);
	return error == std::errc() && end != name.data() + name.size() && *end == '.' ? l : 0;
}

Widest widest(const Config& c) {
	Widest w;
	for (const Layer& l : c.layers) {
		w.q = std::max(w.q, l.n_heads * l.head_dim);
		w.kv = std::max(w.kv, l.n_kv_heads * l.head_dim);
	}
	return w;
}

std::vector<uint32_t> block_sizes(const Config& c) {
	std::vector<uint32_t> out;
	for (const bool chosen : {true, false})
		for (const Layer& l : c.layers)
			if (l.blocks.tokens && l.blocks.chosen == chosen && std::ranges::find(out, l.blocks.tokens) == out.end())
				out.push_back(l.blocks.tokens);
	return out;
}

uint32_t rope_width(const Config& c) {
	uint32_t n = c.temperature.scale != 0 ? 1 : 0;
	for (const Rope& r : c.ropes) n += r.dim;
	if (c.indexer.block > 1) n += c.ropes[0].dim;
	for (const uint32_t tokens : block_sizes(c)) n += tokens != c.indexer.block ? c.ropes[0].dim : 0;
	return n;
}

uint64_t kv_f16_bytes(const Config& c) {
	uint64_t n = 0;
	for (uint32_t l = 0; l < c.n_layers; ++l)
		if (has_own_kv(c, l))
			n += uint64_t(2) * c.layers[l].n_kv_heads * (c.layers[l].head_dim + second_dim(c.layers[l])) /
			     std::max(c.layers[l].blocks.tokens, 1u); // entries of blocks; their windows do not grow
	return n;
}

Config read_config(const Gguf& g, const Config* drafts_for) {
	if (g.text("general.type", "model") == "adapter")
		fail(Code::Unsupported, "{}: an adapter; give its model with -m, and it with --lora", g.name());
	const Family& f = family_of(g);
	if (f.drafts != DraftKind::None && !drafts_for)
		fail(Code::Unsupported, "{}: {}; give the model with -m, and it with --draft", g.name(), draft_kind_text(f));
	const Keys k{g, f.arch};
	Config c;
	c.arch = f.arch, c.name = g.text("general.name", "");
	c.norm = see_norm(k, f), c.norm_groups = f.norm_groups ? k.u32("attention.group_norm_groups", 1) : 1;
	c.output_bias = f.output_bias;
	if (!g.find_tensor("output_norm.weight")) c.final_norm = f.final_norm;
	const FusedFormat* const fused = fused_format(f.drafts);
	if (fused)
		read_fusion(k, *drafts_for, c), fused->read_keys(k, c);
	else
		check_vocab(g, k, c);
	read_encodes(k, f, c);
	read_layer_count(k, f, c);
	const Windows windows = read_windows(k, f, c.n_layers);
	LayerSizes sizes;
	read_sizes(k, f, c, first_full(f, windows, c.n_layers), sizes);
	const Latent latent = read_latent(k, f, c, sizes);
	read_rope(k, f, latent, c);
	read_window_sizes(k, f, c, windows, sizes);
	check_sizes(k, f, c);
	c.tied_embedding = c.encodes || !g.find_tensor("output.weight");
	read_text_input(k, f, c);
	read_text_head(k, f, c);
	if (f.drafts == DraftKind::Assistant) c.target_dim = k.u32("embedding_length_out");
	Layer layer = f.layer;
	see_traits(k, f, layer);
	if (fused) fused->see_traits(k, layer);
	read_scales(k, f, c, layer);
	read_rope_scaling(k, f, c);
	if (layer.qk_norm == QkNorm::HeadLast && rope_attention_scale(c.ropes[0]) != 1) // the norm would cancel it
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without a factor of cos and sin", g.name(),
		     k.key("rope.scaling.type"), rope_scaling_name(c.ropes[0].scaling), f.arch);
	read_temperature(k, f, c);
	if (f.latent) layer.latent = latent, layer.attention_scale = latent_scale(k, latent, c.ropes[0]);
	if (const uint32_t v = k.u32("attention.value_length", 0); f.narrow_values && v < c.head_dim) layer.narrow_v = v;
	describe_layers(c, f, layer, windows, sizes);
	for (const Layer& l : c.layers) check_layer(k, f, c, l);
	look_at_layers(g, f, c);
	read_xielu(k, c);
	if (f.streams != StreamKind::Gated) read_layer_inputs(k, f, c); // their key means rows of n-grams
	read_streams(k, f, c);
	read_hyper_streams(k, f, c);
	place_experts(c, read_mixture(k, f, c));
	place_value_experts(k, f, c);
	read_limits(k, f, c);
	if (f.skips_parts) skip_parts(k, c);
	place_recurrent(c, read_recurrent(k, f, c));
	read_indexer(k, f, c);
	read_blocks(k, f, c);
	read_token_experts(k, f, c);
	if (f.single_parts) place_single_parts(c, read_mlp_layers(k, c));
	const std::vector<TensorSpec> specs = tensor_specs(c);
	check_layer_count(k, specs, c);
	for (const TensorSpec& s : specs) check_tensor(g, s);
	check_extra_tensors(k, specs, c);
	repeat_layers(k, f, c);
	check_encoder(k, c);
	return c;
}

void warn_about_context(const Config& c, uint32_t ctx) {
	if (ctx > c.max_seq)
		warn_once(fmt::format(
		    "the context of {} tokens is longer than the {} the model was trained for; output quality may degrade", ctx,
		    c.max_seq));
}

} // namespace kvrun
