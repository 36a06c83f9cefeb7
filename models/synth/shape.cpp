// Synthetic models: the parser of the text that names one.
#include "models/synth/shape.h"
#include "engine/core/split.h"
#include "engine/core/splitmix64.h"
#include "engine/core/utf8.h"
#include "models/families.h"
#include "models/recurrent.h"
#include "models/streams.h"
#include "models/synth/shape_rows.h"
#include "shared/experts.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvrun {
namespace {

std::string lower_name(DType t) {
	std::string s = dtype_info(t).name;
	for (char& c : s) c = char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
	return s;
}

std::string joined(const std::vector<std::string>& words) {
	std::string s;
	for (const std::string& w : words) s += (s.empty() ? "" : " ") + w;
	return s;
}

uint64_t number(std::string_view what, std::string_view text, uint64_t lowest, uint64_t highest) {
	uint64_t n = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
	if (error != std::errc() || end != text.data() + text.size() || n < lowest || n > highest)
		fail(Code::Invalid, "{} of a synthetic model is '{}', expected a number from {} to {}", what,
		     one_line(text, 40), lowest, highest);
	return n;
}

void set_key(SynthSpec& s, std::string_view item) {
	const size_t at = item.find('=');
	const std::string_view key = item.substr(0, at), value = at == item.npos ? "" : item.substr(at + 1);
	Config& c = s.config;
	struct Key {
		std::string_view name;
		uint32_t* value;
		uint32_t lowest, highest;
	};
	Experts& e = s.mixture.experts;
	const Key keys[] = {{"dim", &c.dim, 32, 65536},
	                    {"hidden", &c.hidden_dim, 32, 262144},
	                    {"layers", &c.n_layers, 1, 512},
	                    {"heads", &c.n_heads, 1, 1024},
	                    {"kv_heads", &c.n_kv_heads, 1, 1024},
	                    {"head_dim", &c.head_dim, 8, 512},
	                    {"vocab", &c.vocab, 1024, 262144},
	                    {"ctx", &c.max_seq, 16, 1u << 24},
	                    {"mtp", &s.mtp, 0, 1},
	                    {"experts", &e.n, 1, KV_MOST_EXPERTS},
	                    {"used", &e.used, 1, KV_MOST_USED},
	                    {"expert_hidden", &e.hidden_dim, 32, 65536},
	                    {"shared", &e.shared_dim, 32, 65536}};
	for (const Key& k : keys)
		if (k.name == key) {
			*k.value = uint32_t(number(key, value, k.lowest, k.highest));
			return;
		}
	if (key == "arch") {
		const Family* f = find_family(value);
		if (!f)
			fail(Code::Invalid, "arch of a synthetic model is '{}', expected one of {}", one_line(value),
			     family_names());
		c.arch = f->arch;
		return;
	}
	std::string known = "arch";
	for (const Key& k : keys) known.append(k.value == &e.n ? ", and of mixtures " : " ").append(k.name);
	fail(Code::Invalid, "a synthetic model has no key '{}'; there are {}", one_line(key, 40), known);
}

// Completes the experts after keys have changed them; they are chosen as in the family.
void complete_mixture(SynthSpec& s, const Family& family) {
	Experts& e = s.mixture.experts;
	if (!e.n && !e.used && !e.hidden_dim && !e.shared_dim) return;
	if (!family.mixture)
		fail(Code::Invalid, "{} has no experts; keys experts used expert_hidden shared are for mixtures", family.arch);
	if (!e.n || !e.used || !e.hidden_dim)
		fail(Code::Invalid, "a mixture needs keys experts, used and expert_hidden, all of them");
	if (e.used > e.n) fail(Code::Invalid, "a synthetic model cannot use {} of {} experts", e.used, e.n);
	if (family.layer.experts.beside_mlp || family.layer.experts.at_input || family.layer.experts.weigh_input ||
	    e.latent_dim >= s.config.dim)
		e.latent_dim = 0; // another family, or other keys, than those of the row
	if (e.hidden_dim % 32 != 0 || e.shared_dim % 32 != 0)
		fail(Code::Invalid, "expert_hidden {} and shared {} of a synthetic model must be multiples of 32", e.hidden_dim,
		     e.shared_dim);
	const Experts& own = family.layer.experts;
	if (e.gating == Gating::Softmax) e.gating = own.gating;
	e.normalise |= own.normalise, e.clamped = own.clamped;
	e.router_bias |= own.router_bias, e.bias |= own.bias, e.beside_mlp = own.beside_mlp;
	e.at_input = own.at_input;
	e.weigh_input = own.weigh_input, e.shared_mean = own.shared_mean;
	s.mixture.first = std::min(s.mixture.first, s.config.n_layers - 1);
	s.mixture.period = std::min(s.mixture.period, s.config.n_layers);
	place_experts(s.config, s.mixture);
}

// The last layer attends if no other one does.
void complete_single_parts(SynthSpec& s, RecurrentLayers& r, std::string_view parts) {
	std::string all;
	while (all.size() < s.config.n_layers) all += parts;
	all.resize(s.config.n_layers);
	if (all.find('*') == all.npos) all.back() = '*';
	std::vector<bool> mlp;
	for (const char part : all) r.layers.push_back(part == 'M'), mlp.push_back(part == '-' || part == 'E');
	s.mixture.layers = mlp;
	place_experts(s.config, s.mixture);
	place_recurrent(s.config, r);
	place_single_parts(s.config, mlp);
}

// Every fourth layer and the last one attend, or those of `attending` that the model has.
void complete_recurrent(SynthSpec& s, const Family& family, const SynthTraits& traits) {
	Recurrent shape = traits.recurrent;
	const uint64_t attending = traits.attending;
	if (!shape.n_heads || shape.kind != family.recurrent_shape.kind)
		fail(Code::Invalid, "{} has recurrent layers, which the shape has not; begin with a shape of that arch",
		     family.arch);
	shape.beside = family.recurrent_shape.beside, shape.normed = !shape.beside;
	if (shape.kind == RecurrentKind::ShortConv) shape.v_dim = s.config.dim;
	if (shape.kind == RecurrentKind::ChannelDelta) shape.n_heads = shape.n_key_heads = s.config.n_heads;
	if (shape.kind == RecurrentKind::Removal) {
		if (s.config.dim % shape.k_dim != 0)
			fail(Code::Invalid, "dim {} of a synthetic model of {} must be a multiple of {}", s.config.dim, family.arch,
			     shape.k_dim);
		shape.n_heads = shape.n_key_heads = s.config.dim / shape.k_dim;
	}
	const uint32_t n = s.config.n_layers;
	const uint64_t first = n < 64 ? attending & ((uint64_t(1) << n) - 1) : attending; // those of the first n layers
	shape.tiled = family.recurrent_shape.tiled, shape.fused_gates = family.recurrent_shape.fused_gates;
	RecurrentLayers r{shape, {}};
	if (family.single_parts) return complete_single_parts(s, r, traits.parts);
	for (uint32_t l = 0; l < n; ++l)
		r.layers.push_back(shape.beside || family.all_recurrent ? true
		                   : first                              ? l >= 64 || !(first >> l & 1)
		                                                        : (l + 1) % 4 != 0 && l + 1 < n);
	place_recurrent(s.config, r);
}

void complete_hyper(Config& c, StreamKind kind, const Streams& streams) {
	if (streams.n < 2)
		fail(Code::Invalid, "{} has hyper-connections, which the shape has not; begin with a shape of that arch",
		     c.arch);
	c.streams = streams, c.streams.kind = kind;
}

// N-grams of two and three tokens: 16 rows of a small table for a token; an indexer that chooses 2048 tokens, in blocks
// of four.
void complete_ngrams(Config& c) {
	if (c.dim % 512 != 0) // rows of 32 channels
		fail(Code::Invalid, "dim {} of a synthetic model of {} must be a multiple of 512", c.dim, c.arch);
	constexpr uint64_t kRows = 20011; // and more, for each of the 16
	c.final_norm.clear();             // a mixer takes its place
	NGrams& g = c.ngrams;
	g.longest = 3, g.per_length = 8, g.taps = 4, g.dim = c.dim / g.rows();
	g.layer = c.n_layers > 2 ? 1 : 0;
	for (uint64_t i = 0; i < g.longest; ++i) g.factors.push_back((splitmix64(i) >> 24) | 1); // products fit 64 bits
	c.indexer = {.n_heads = 4, .dim = 128, .block = 4, .most = 512};
	for (uint32_t l = 0; l < c.n_layers; ++l) c.layers[l].indexed = attends(c.layers[l]), c.layers[l].index_layer = l;
	for (uint64_t i = 0; i < g.rows(); ++i) g.first.push_back(i * 2 * kRows), g.sizes.push_back(kRows + 2 * i);
}

// An indexer on the latent of queries, or one whose heads choose for KV heads. Of GLM-5.2's the layers 0, 1, 2, 6, 10
// ... have one.
void complete_indexer(Config& c, const SynthTraits& t) {
	if (!t.indexer.block)
		fail(Code::Invalid, "{} has an indexer, which the shape has not; begin with a shape of that arch", c.arch);
	c.indexer = t.indexer, c.indexer.of_latent = !t.indexer.pool;
	if (c.indexer.pool) c.indexer.n_heads = c.n_kv_heads;
	if (find_family(c.arch)->indexer == IndexerKind::LatentRopeLast)
		c.indexer.rope_last = true, c.indexer.norm_eps = c.norm_eps;
	for (uint32_t l = 0, last = 0; l < c.n_layers; ++l) {
		if (!attends(c.layers[l]) || (c.indexer.pool && !c.layers[l].experts.n)) continue;
		if (!t.index_period || l <= t.index_from || (l - t.index_from) % t.index_period == 0) last = l;
		c.layers[l].indexed = true, c.layers[l].index_layer = last;
	}
}

// Sizes of layers with a window, if keys have not changed those of other layers.
LayerSizes layer_sizes(const Config& c, const Family& family, const SynthRow& r) {
	LayerSizes sizes;
	sizes.shared_kv = c.n_layers == r.layers ? r.more.shared_kv : 0;
	if (r.more.window_head_dim && c.head_dim == r.head_dim)
		sizes.window_head_dim = sizes.window_rope_dim = r.more.window_head_dim;
	const auto of_windows = [&](std::vector<uint32_t>& each, uint32_t in_window, uint32_t other, bool as_in_row) {
		for (uint32_t l = 0; l < c.n_layers && in_window && as_in_row; ++l)
			each.push_back(has_window(family, {.tokens = r.more.window}, l) ? in_window : other);
	};
	of_windows(sizes.n_heads, r.more.window_heads, c.n_heads, c.n_heads == r.heads && c.n_kv_heads == r.kv_heads);
	of_windows(sizes.n_kv_heads, r.more.window_kv_heads, c.n_kv_heads, c.n_kv_heads == r.kv_heads);
	return sizes;
}

// Sets dependent values, and checks the limits that read_config() would report only after the file has been made.
void complete(SynthSpec& s, const SynthRow& r) {
	Config& c = s.config;
	const Family& family = *find_family(c.arch);
	Layer layer = family.layer;
	c.norm = r.more.rms && family.norm_by_key ? NormKind::Rms : family.norm, c.output_bias = family.output_bias;
	c.embedding_scale = r.more.embedding_scale    ? r.more.embedding_scale
	                    : family.scales_embedding ? std::sqrt(float(c.dim))
	                                              : 1;
	if (family.positions) c.text_input.positions = c.max_seq;
	c.text_input.normed = family.weighs_embedding;
	c.logit_scale = r.more.logit_scale, layer.residual_scale = r.more.residual_scale;
	if (r.more.attention_scale != 0) layer.attention_scale = r.more.attention_scale;
	layer.score_softcap = family.score_softcap, c.logit_softcap = family.logit_softcap;
	c.ropes[0].dim = r.more.rotary_dim && c.head_dim == r.head_dim ? r.more.rotary_dim : c.head_dim;
	c.ropes[0].neox = family.neox, c.ropes[0].rotates = !r.more.no_rope;
	layer.qkv_bias |= r.more.qkv_bias, layer.gate_by_head |= r.more.gate_by_head;
	if (r.more.parallel && family.mlp_input_by == MlpInputBy::KeyAndNorm)
		layer.mlp_input = MlpInput::Parallel, layer.qk_norm = family.optional_qk_norm;
	if (family.unnormed_experts && s.mixture.experts.n == family.unnormed_experts) layer.qk_norm = QkNorm::None;
	if (family.latent) {
		layer.latent = r.more.latent;
		if (!layer.latent.rank)
			fail(Code::Invalid, "{} has latent attention, which the shape has not; begin with deepseek-v2-lite",
			     c.arch);
		c.head_dim = layer.latent.rank, c.n_kv_heads = 1, c.ropes[0].dim = layer.latent.rope_dim;
	}
	describe_layers(c, family, layer,
	                {.tokens = r.more.window, .rotated = family.dense_rotated ? r.more.dense_layers : 0},
	                layer_sizes(c, family, r));
	for (Layer& l : c.layers) l.v_is_k = r.more.v_is_k && !l.window;
	c.layer_input_dim = r.more.layer_input_dim;
	if (family.streams == StreamKind::AltUp) {
		c.streams.n = kMostStreams, c.streams.kind = family.streams;
		for (uint32_t l = 0; l < c.n_layers; ++l) {
			c.layers[l].laurel_rank = r.more.laurel_rank;
			if (l < r.more.cut_layers) c.layers[l].gate_cut = kGateCut;
		}
		if (!c.layer_input_dim)
			fail(Code::Invalid, "{} has several residual streams, which the shape has not; begin with gemma-3n-e4b",
			     c.arch);
	}
	complete_mixture(s, family);
	if (family.recurrent) complete_recurrent(s, family, r.more);
	if (family.streams == StreamKind::Attended)
		fail(Code::Invalid, "{} has attention residuals, which no shape has; give another arch", c.arch);
	if (family.streams == StreamKind::Gated || family.streams == StreamKind::Manifold)
		complete_hyper(c, family.streams, r.more.streams);
	if (family.streams == StreamKind::Gated) complete_ngrams(c);
	if (family.indexer != IndexerKind::None && family.indexer != IndexerKind::Blocks) complete_indexer(c, r.more);
	if (c.n_heads % c.n_kv_heads != 0)
		fail(Code::Invalid, "{} heads of a synthetic model do not divide into {} kv_heads", c.n_heads, c.n_kv_heads);
	if (s.mtp && !family.predicts) fail(Code::Invalid, "{} has no prediction layer, which mtp=1 asks for", family.arch);
	if (c.head_dim % 8 != 0)
		fail(Code::Invalid, "head_dim of a synthetic model is {}, not a multiple of 8", c.head_dim);
	if (c.dim % 32 != 0 || c.hidden_dim % 32 != 0)
		fail(Code::Invalid, "dim {} and hidden {} of a synthetic model must be multiples of 32", c.dim, c.hidden_dim);
}

const SynthRow& find_row(std::string_view name) {
	for (const SynthRow& r : synth_rows())
		if (name == r.name) return r;
	fail(Code::Invalid, "there is no shape of the name '{}'; there are {}", one_line(name, 60), joined(synth_names()));
}

} // namespace

std::vector<std::string> synth_names() {
	std::vector<std::string> out;
	for (const SynthRow& r : synth_rows()) out.push_back(r.name);
	return out;
}

std::vector<std::string> synth_types() {
	std::vector<std::string> out;
	for (const DType t : kTensorTypes) out.push_back(lower_name(t));
	return out;
}

DType parse_synth_type(std::string_view name) {
	for (const DType t : kTensorTypes)
		if (name == lower_name(t)) return t;
	fail(Code::Invalid, "the type of a synthetic model is '{}', expected one of {}", one_line(name, 40),
	     joined(synth_types()));
}

SynthSpec parse_synth(std::string_view text) {
	const std::vector<std::string_view> parts = split(text, ':');
	if (parts.size() < 2 || parts.size() > 3)
		fail(Code::Invalid, "'{}' is no synthetic model; write NAME[,key=value,...]:TYPE[:SEED], as llama-3.1-8b:q4_k",
		     one_line(text, 80));
	const std::vector<std::string_view> items = split(parts[0], ',');
	const SynthRow& r = find_row(items[0]);
	SynthSpec s;
	s.name = parts[0];
	Config& c = s.config;
	c.arch = r.arch, c.name = fmt::format("{} of random weights", parts[0]);
	c.dim = r.dim, c.hidden_dim = r.hidden, c.n_layers = r.layers, c.n_heads = r.heads, c.n_kv_heads = r.kv_heads;
	c.head_dim = r.head_dim, c.vocab = r.vocab, c.max_seq = r.ctx;
	c.ropes = {{.theta = r.theta}}, c.norm_eps = r.eps, c.tied_embedding = r.tied;
	s.tokenizer = r.tokenizer;
	s.mixture.experts = r.more.experts, s.mixture.first = r.more.dense_layers, s.mixture.period = r.more.mixture_period;
	for (size_t i = 1; i < items.size(); ++i) set_key(s, items[i]);
	complete(s, r);
	s.type = parse_synth_type(parts[1]);
	if (parts.size() == 3) s.seed = number("seed", parts[2], 0, UINT64_MAX);
	return s;
}

} // namespace kvrun
