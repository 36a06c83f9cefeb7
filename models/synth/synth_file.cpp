// A GGUF file of a synthetic model: the header is in memory, weights are computed when they are read.
#include "models/synth/synth_file.h"
#include "engine/core/splitmix64.h"
#include "models/families.h"
#include "models/hyper_streams.h"
#include "models/prediction.h"
#include "models/recurrent.h"
#include "models/synth/blocks.h"
#include "models/synth/vocabulary.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace kvrun {
namespace {

constexpr uint64_t kAlignment = 32; // of tensors, GGUF's default

class Header { // builds the bytes of a GGUF header
 public:
	template <class T> void raw(T v) {
		const auto* p = reinterpret_cast<const std::byte*>(&v);
		bytes.insert(bytes.end(), p, p + sizeof v);
	}
	void string(std::string_view s) {
		raw(uint64_t(s.size()));
		const auto* p = reinterpret_cast<const std::byte*>(s.data());
		bytes.insert(bytes.end(), p, p + s.size());
	}
	void key(std::string_view name, GgufType t) {
		string(name);
		raw(uint32_t(t));
		++n_keys;
	}
	void text(std::string_view name, std::string_view v) { key(name, GgufType::String), string(v); }
	void u32(std::string_view name, uint32_t v) { key(name, GgufType::U32), raw(v); }
	void f32(std::string_view name, float v) { key(name, GgufType::F32), raw(v); }
	void flag(std::string_view name, bool v) { key(name, GgufType::Bool), raw(uint8_t(v)); }
	void array(std::string_view name, GgufType element, size_t n) {
		key(name, GgufType::Array), raw(uint32_t(element)), raw(uint64_t(n));
	}
	void texts(std::string_view name, const std::vector<std::string>& v) {
		array(name, GgufType::String, v.size());
		for (const std::string& s : v) string(s);
	}
	std::vector<std::byte> bytes;
	uint64_t n_keys = 0;
};

// One number if all layers have the same, else a list.
void add_heads(Header& h, const Config& c) {
	const std::string key = c.arch + ".attention.head_count";
	if (std::ranges::all_of(c.layers, [&](const Layer& l) { return l.n_heads == c.n_heads; }))
		return h.u32(key, c.n_heads);
	h.array(key, GgufType::U32, c.layers.size());
	for (const Layer& l : c.layers) h.raw(l.n_heads);
}

void add_kv_heads(Header& h, const Config& c) {
	const std::string key = c.arch + ".attention.head_count_kv";
	const bool by_heads = attends_by_kv_heads(*find_family(c.arch));
	const auto heads = [&](const Layer& l) { return by_heads && (l.recurrent.n_heads || !l.mixes) ? 0 : l.n_kv_heads; };
	const bool same = std::ranges::all_of(c.layers, [&](const Layer& l) { return heads(l) == c.n_kv_heads; });
	if (same) return h.u32(key, c.n_kv_heads);
	h.array(key, GgufType::U32, c.layers.size());
	for (const Layer& l : c.layers) h.raw(uint32_t(heads(l)));
}

void add_windows(Header& h, const Config& c) {
	const auto key = [&](const char* k) { return c.arch + "." + k; };
	const auto window = std::ranges::find_if(c.layers, [](const Layer& l) { return bool(l.window); });
	if (window == c.layers.end()) return;
	h.u32(key("attention.sliding_window"), window->window.tokens);
	if (window->head_dim == c.head_dim && c.ropes[window->rope].dim == c.ropes[0].dim) return;
	h.array(key("attention.sliding_window_pattern"), GgufType::Bool, c.layers.size());
	for (const Layer& l : c.layers) h.raw(uint8_t(bool(l.window)));
	h.u32(key("attention.key_length_swa"), window->head_dim);
	h.u32(key("attention.value_length_swa"), window->head_dim);
	h.u32(key("rope.dimension_count_swa"), c.ropes[window->rope].dim);
}

// Pairs of channels in each section of RoPE, for which llama.cpp asks. The positions of a text are the same in all.
constexpr std::pair<std::string_view, std::array<int32_t, 4>> kRopeSections[] = {
    {"qwen2vl", {16, 24, 24, 0}}, {"qwen3vl", {24, 20, 20, 0}},   {"qwen3vlmoe", {24, 20, 20, 0}},
    {"qwen35", {11, 11, 10, 0}},  {"qwen35moe", {11, 11, 10, 0}}, {"qwen4exp", {11, 11, 10, 0}}};
void add_rope_sections(Header& h, const Config& c) {
	for (const auto& [arch, sections] : kRopeSections) {
		if (c.arch != arch) continue;
		h.array(c.arch + ".rope.dimension_sections", GgufType::I32, sections.size());
		for (const int32_t n : sections) h.raw(n);
	}
}

void add_config(Header& h, const SynthSpec& s) {
	const Config& c = s.config;
	const auto key = [&](const char* k) { return c.arch + "." + k; };
	h.text("general.architecture", c.arch);
	h.text("general.name", c.name);
	h.u32("general.file_type", tensor_type_info(s.type).file_type);
	h.u32(key("context_length"), c.max_seq);
	h.u32(key("embedding_length"), c.dim);
	h.u32(key("block_count"), c.n_layers + s.mtp);
	if (s.mtp) h.u32(key("nextn_predict_layers"), s.mtp);
	if (find_family(c.arch)->single_parts) {
		h.array(key("feed_forward_length"), GgufType::U32, c.layers.size());
		for (const Layer& l : c.layers) h.raw(l.mixes ? 0u : c.hidden_dim);
	} else {
		h.u32(key("feed_forward_length"), c.hidden_dim * (find_family(c.arch)->hidden_halved ? 2 : 1));
	}
	add_heads(h, c);
	add_kv_heads(h, c);
	Latent t;
	for (const Layer& l : c.layers)
		if (l.latent.rank) t = l.latent;
	const uint32_t rotated = t.no_rope ? 0 : t.rope_dim;
	h.u32(key("attention.key_length"), c.head_dim + rotated);
	h.u32(key("attention.value_length"), c.head_dim);
	h.u32(key("rope.dimension_count"), t.no_rope ? 0 : c.ropes[0].dim * (find_family(c.arch)->half_rotary ? 2 : 1));
	h.f32(key("rope.freq_base"), c.ropes[0].theta);
	h.f32(key(c.norm == NormKind::Rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
	      c.norm_eps);
	const Layer& layer = c.layers[0];
	add_windows(h, c);
	if (find_family(c.arch)->mlp_input_by == MlpInputBy::KeyAndNorm)
		h.flag(key("use_parallel_residual"), layer.mlp_input == MlpInput::Parallel);
	uint32_t shared = 0; // layers without keys and values of their own
	for (uint32_t l = 0; l < c.n_layers; ++l) shared += c.layers[l].kv_layer != l;
	if (shared) h.u32(key("attention.shared_kv_layers"), shared);
	if (c.layer_input_dim) h.u32(key("embedding_length_per_layer_input"), c.layer_input_dim);
	if (c.streams.kind == StreamKind::AltUp) {
		h.u32(key("altup.num_inputs"), c.streams.n);
		h.u32(key("altup.active_idx"), c.streams.active);
		h.array(key("activation_sparsity_scale"), GgufType::F32, c.layers.size());
		for (const Layer& l : c.layers) h.raw(l.gate_cut);
	}
	if (c.embedding_scale != 1) h.f32(key("embedding_scale"), c.embedding_scale);
	if (layer.residual_scale != 1) h.f32(key("residual_scale"), layer.residual_scale);
	if (layer.attention_scale != 0) h.f32(key("attention.scale"), layer.attention_scale);
	if (c.logit_scale != 1)
		h.f32(key("logit_scale"), find_family(c.arch)->divides_logits ? 1 / c.logit_scale : c.logit_scale);
	if (!c.ropes[0].rotates) h.flag(key("rope.scaling.finetuned"), false);
	add_rope_sections(h, c);
	h.u32(key("vocab_size"), c.vocab);
	if (!t.rank) return;
	h.u32(key("attention.kv_lora_rank"), t.rank);
	if (t.q_rank) h.u32(key("attention.q_lora_rank"), t.q_rank);
	h.u32(key("attention.key_length_mla"), t.nope_dim + rotated);
	h.u32(key("attention.value_length_mla"), t.v_dim);
}

void add_indexer(Header& h, const Config& c) {
	const Indexer& x = c.indexer;
	if (!x.block) return;
	const auto key = [&](const char* k) { return c.arch + "." + k; };
	h.u32(key("attention.indexer.head_count"), x.n_heads);
	h.u32(key("attention.indexer.key_length"), x.dim);
	h.u32(key("attention.indexer.top_k"), x.pool ? x.most + x.local : x.most * x.block);
	if (x.pool) {
		h.u32(key("attention.indexer.block_size"), x.pool), h.u32(key("attention.indexer.local_blocks"), x.local);
		return;
	}
	if (x.gated) h.u32(key("attention.indexer.kpool"), x.block);
	if (x.of_latent) {
		h.array(key("attention.indexer.types"), GgufType::Bool, c.layers.size());
		for (uint32_t l = 0; l < c.n_layers; ++l) h.raw(uint8_t(has_indexer(c, l)));
		return;
	}
	h.array(key("attention.compress_ratios"), GgufType::I32, c.layers.size());
	for (const Layer& l : c.layers) h.raw(int32_t(l.indexed ? x.block : 0));
}

void add_hyper(Header& h, const Config& c) {
	if (!c.streams.hyper()) return;
	const auto key = [&](const char* k) { return c.arch + "." + k; };
	const auto numbers = [&](const char* k, const std::vector<uint64_t>& v) {
		h.array(key(k), GgufType::U64, v.size());
		for (const uint64_t x : v) h.raw(x);
	};
	h.u32(key("hyper_connection.count"), c.streams.n);
	if (c.streams.kind == StreamKind::Manifold) {
		h.f32(key("hyper_connection.epsilon"), c.streams.eps);
		if (c.streams.rounds) return h.u32(key("hyper_connection.sinkhorn_iterations"), c.streams.rounds);
		return h.f32(key("hyper_connection.magnitude"), c.streams.post_scale);
	}
	h.u32(key("hyper_connection.low_rank"), c.streams.rank);
	const NGrams& g = c.ngrams;
	h.array(key("ple.layers"), GgufType::I32, 1), h.raw(int32_t(g.layer));
	h.u32(key("ple.ngram_size"), g.longest), h.u32(key("ple.heads_per_ngram"), g.per_length);
	h.u32(key("ple.conv_kernel"), g.taps), h.u32(key("ple.eos_token_id"), g.separator);
	h.u32(key("embedding_length_per_layer_input"), g.dim);
	numbers("ple.layer_multipliers", g.factors);
	numbers("ple.head_offsets", g.first), numbers("ple.head_vocab_sizes", g.sizes);
}

void add_hyper_tensors(std::vector<TensorSpec>& out, const Config& c) {
	const NGrams& g = c.ngrams;
	if (!g.longest) return;
	out.push_back({kNGramTable, uint32_t(g.first.back() + g.sizes.back()), g.dim, true});
}

// alpha 0.8, beta 0.5 and eps -1e-6, with which training begins.
void add_xielu(Header& h, const Config& c) {
	if (c.layers[0].activation != Activation::Xielu) return;
	constexpr std::pair<const char*, float> keys[] = {
	    {"xielu.alpha_p", 0.20327f}, {"xielu.alpha_n", -1.05023f}, {"xielu.beta", 0.5f}, {"xielu.eps", -1e-6f}};
	for (const auto& [key, value] : keys) {
		h.array(key, GgufType::F32, c.layers.size());
		for (size_t l = 0; l < c.layers.size(); ++l) h.raw(value);
	}
}

void add_recurrent(Header& h, const Config& c, uint32_t more_layers) {
	const auto key = [&](const char* k) { return c.arch + "." + k; };
	const Family& family = *find_family(c.arch);
	if (!family.recurrent) return;
	const auto one = std::ranges::find_if(c.layers, [](const Layer& l) { return l.recurrent.n_heads != 0; });
	if (family.recurrent_shape.kind == RecurrentKind::ShortConv && one != c.layers.end())
		h.u32(key("shortconv.l_cache"), one->recurrent.taps);
	if (family.recurrent_shape.kind == RecurrentKind::ShortConv) return;
	if (!attends_by_kv_heads(family) && !family.recurrent_shape.beside) {
		h.array(key("attention.recurrent_layers"), GgufType::Bool, c.layers.size() + more_layers);
		for (const Layer& l : c.layers) h.raw(uint8_t(l.recurrent.n_heads != 0));
		for (uint32_t l = 0; l < more_layers; ++l) h.raw(uint8_t(0));
	}
	if (one == c.layers.end()) return;
	const Recurrent& r = c.layers.back().recurrent.n_heads ? c.layers.back().recurrent : one->recurrent;
	if (r.kind == RecurrentKind::Removal) {
		h.u32(key("wkv.head_size"), r.k_dim);
		h.u32(key("attention.decay_lora_rank"), r.decay_rank), h.u32(key("attention.iclr_lora_rank"), r.rate_rank);
		h.u32(key("attention.value_residual_mix_lora_rank"), std::max(r.share_rank, 1u));
		return h.u32(key("attention.gate_lora_rank"), r.gate_rank);
	}
	h.u32(key("ssm.conv_kernel"), r.taps);
	if (r.kind == RecurrentKind::ChannelDelta) {
		if (r.bound < 0) h.f32(key("kda.gate_lower_bound"), r.bound);
		return h.u32(key("kda.head_dim"), r.k_dim);
	}
	h.u32(key("ssm.state_size"), r.k_dim);
	h.u32(key("ssm.group_count"), r.n_key_heads);
	const bool selective = r.kind == RecurrentKind::SelectiveScan;
	h.u32(key("ssm.time_step_rank"), selective ? r.rank : r.n_heads);
	if (r.step_norm == StepNorm::Unit) h.flag(key("ssm.dt_b_c_rms"), true);
	h.u32(key("ssm.inner_size"), r.values());
}

void add_experts(Header& h, const std::string& arch, const Mixture& m) {
	const auto key = [&](const char* k) { return arch + "." + k; };
	const Experts& e = m.experts;
	if (!e.n) return;
	h.u32(key("expert_count"), e.n);
	h.u32(key("expert_used_count"), e.used);
	h.u32(key("expert_feed_forward_length"), e.hidden_dim);
	if (e.latent_dim) h.u32(key("moe_latent_size"), e.latent_dim);
	if (e.gating != Gating::Near) h.u32(key("expert_gating_func"), e.gating == Gating::Sigmoid ? 2 : 1);
	h.flag(key("expert_weights_norm"), e.normalise);
	if (e.scale != 1) h.f32(key("expert_weights_scale"), e.scale);
	if (e.n_groups > 1) {
		h.u32(key("expert_group_count"), e.n_groups);
		h.u32(key("expert_group_used_count"), e.used_groups);
	}
	if (e.shared_dim) h.u32(key("expert_shared_count"), 1);
	if (e.shared_dim) h.u32(key("expert_shared_feed_forward_length"), e.shared_dim);
	if (m.first) h.u32(key("leading_dense_block_count"), m.first);
	if (m.period > 1) h.u32(key("interleave_moe_layer_step"), m.period);
}

void add_tokenizer(Header& h, const SynthSpec& s) {
	const SynthTokens t = synth_tokens(s.tokenizer, s.config.vocab);
	const bool spm = s.tokenizer == SynthVocab::Spm;
	h.text("tokenizer.ggml.model", spm ? "llama" : "gpt2");
	if (!spm) h.text("tokenizer.ggml.pre", s.tokenizer == SynthVocab::Llama3 ? "llama-bpe" : "qwen2");
	h.texts("tokenizer.ggml.tokens", t.texts);
	h.array("tokenizer.ggml.token_type", GgufType::I32, t.kinds.size());
	for (const int32_t k : t.kinds) h.raw(k);
	if (spm) {
		h.array("tokenizer.ggml.scores", GgufType::F32, t.texts.size());
		for (size_t i = 0; i < t.texts.size(); ++i) h.raw(-float(i));
		h.u32("tokenizer.ggml.unknown_token_id", 0);
	} else {
		h.texts("tokenizer.ggml.merges", t.merges);
	}
	h.u32("tokenizer.ggml.bos_token_id", t.bos);
	h.u32("tokenizer.ggml.eos_token_id", t.eos);
	h.flag("tokenizer.ggml.add_bos_token", t.adds_bos);
}

// The type of a tensor: one whose blocks divide its rows. Matrices that llama.cpp never quantises are F16.
DType type_of(const SynthSpec& s, const TensorSpec& t) {
	if (!t.matrix || t.name.find(".ffn_gate_inp") != t.name.npos) return DType::F32; // the router stays exact
	for (const char* part : {"altup_", "laurel_"})
		if (t.name.find(part) != t.name.npos) return DType::F16;
	if (t.cols % dtype_info(s.type).block == 0) return s.type;
	return t.cols % dtype_info(DType::Q8_0).block == 0 ? DType::Q8_0 : DType::F16;
}

uint64_t aligned(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t stream_of(uint64_t seed, std::string_view name) {
	uint64_t h = splitmix64(seed);
	for (const char c : name) h = splitmix64(h ^ uint64_t(static_cast<unsigned char>(c)));
	return h;
}

} // namespace

SynthFile::SynthFile(const SynthSpec& s) {
	std::vector<TensorSpec> specs = tensor_specs(s.config);
	if (s.mtp) {
		const std::vector<TensorSpec> more = tensor_specs(prediction_config(s.config));
		specs.insert(specs.end(), more.begin(), more.end());
	}
	Header keys, table;
	add_config(keys, s);
	add_xielu(keys, s.config);
	add_experts(keys, s.config.arch, s.mixture);
	add_recurrent(keys, s.config, s.mtp);
	add_indexer(keys, s.config);
	add_hyper(keys, s.config);
	add_hyper_tensors(specs, s.config);
	add_tokenizer(keys, s);
	for (const TensorSpec& t : specs) {
		const DType type = type_of(s, t);
		const bool bias = t.name.ends_with(".bias");
		table.string(t.name);
		const uint32_t depth = t.flat ? 1 : t.depth;
		table.raw(uint32_t((t.matrix ? 2 : 1) + (depth > 1)));
		table.raw(uint64_t(t.matrix ? t.cols * t.together : t.cols / depth));
		if (t.matrix) table.raw(uint64_t(t.rows / depth / t.together));
		if (depth > 1) table.raw(uint64_t(depth));
		table.raw(gguf_number(type));
		table.raw(bytes_); // counted from the start of the data
		                   // products with a matrix keep the magnitude of the input; norms are 1
		const float deviation = t.matrix ? 1 / std::sqrt(float(t.cols)) : bias ? 0.1f : 0.f;
		const float value = t.name.ends_with(".ssm_a") ? -1 : 1; // states decay
		tensors_.push_back(
		    {bytes_, t.rows * dtype_row_bytes(type, t.cols), type, deviation, value, stream_of(s.seed, t.name)});
		bytes_ = aligned(bytes_ + tensors_.back().bytes);
	}
	Header all;
	for (const char c : {'G', 'G', 'U', 'F'}) all.raw(c);
	all.raw(uint32_t(3));
	all.raw(uint64_t(specs.size()));
	all.raw(keys.n_keys);
	header_ = std::move(all.bytes);
	header_.insert(header_.end(), keys.bytes.begin(), keys.bytes.end());
	header_.insert(header_.end(), table.bytes.begin(), table.bytes.end());
	header_.resize(aligned(header_.size()));
	for (Tensor& t : tensors_) t.at += header_.size();
	bytes_ += header_.size();
}

void SynthFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	KV_ASSERT(at <= bytes_ && dst.size() <= bytes_ - at);
	if (at < header_.size()) {
		const size_t n = std::min<uint64_t>(dst.size(), header_.size() - at);
		std::memcpy(dst.data(), header_.data() + at, n);
		at += n, dst = dst.subspan(n);
	}
	auto t = std::upper_bound(tensors_.begin(), tensors_.end(), at,
	                          [](uint64_t a, const Tensor& tensor) { return a < tensor.at; });
	if (t != tensors_.begin()) --t;
	for (; !dst.empty(); ++t) {
		const uint64_t from = at - t->at, end = std::next(t) == tensors_.end() ? bytes_ : std::next(t)->at;
		const size_t n = std::min<uint64_t>(dst.size(), end - at);
		const size_t own = from < t->bytes ? std::min<uint64_t>(n, t->bytes - from) : 0;
		if (own) read_tensor(*t, from, dst.first(own));
		std::ranges::fill(dst.subspan(own, n - own), std::byte(0)); // padding
		at += n, dst = dst.subspan(n);
	}
}

void SynthFile::read_tensor(const Tensor& t, uint64_t at, std::span<std::byte> dst) const {
	const size_t block = dtype_info(t.type).bytes;
	const auto make = [&](uint64_t first, std::span<std::byte> to) {
		if (t.deviation > 0) return synth_blocks(t.type, t.stream, t.deviation, first, to);
		for (size_t i = 0; i < to.size(); i += 4) std::memcpy(&to[i], &t.value, 4);
	};
	std::byte whole[256]; // a block of which only a part is read
	const auto part = [&](uint64_t index, size_t skip, size_t n) {
		make(index, std::span(whole).first(block));
		std::memcpy(dst.data(), whole + skip, n);
		dst = dst.subspan(n), at += n;
	};
	if (at % block) part(at / block, at % block, std::min<size_t>(dst.size(), block - at % block));
	const size_t middle = dst.size() / block * block;
	make(at / block, dst.first(middle));
	dst = dst.subspan(middle), at += middle;
	if (!dst.empty()) part(at / block, 0, dst.size());
}

} // namespace kvrun
