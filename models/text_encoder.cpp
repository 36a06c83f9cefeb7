// Texts that become vectors or scores: what an encoder adds to embeddings, and what follows its last layer.
#include "models/text_encoder.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <bit>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kMostLabels = 1024, kMostDense = 1 << 16;

// A tensor with so many rows, as a number; 0: the file has none.
uint32_t rows_of(const Gguf& g, const char* tensor, uint32_t most) {
	const GgufTensor* t = g.find_tensor(tensor);
	if (!t) return 0;
	if (t->rows() < 1 || t->rows() > most)
		fail(Code::Format, "{}: tensor {} has {} rows, expected 1 to {}; the file is damaged", g.name(), tensor,
		     t->rows(), most);
	return uint32_t(t->rows());
}

// 1 to 3, as files have it. key: 0 and 4 (no pooling; a classifier) leave the default.
Pooling pooling_of(const ConfigKeys& k, const char* key, Pooling fallback) {
	const uint32_t n = k.u32(key, 0);
	if (n > 4 && n != UINT32_MAX)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun knows 0 to 4", k.g.name(), k.key(key), n);
	return n >= 1 && n <= 3 ? Pooling(n) : fallback;
}

} // namespace

void read_encodes(const ConfigKeys& k, const Family& f, Config& c) {
	c.encodes = !k.flag("attention.causal", !f.encodes);
	if ((f.layer.alibi || f.inputs_projected) && !c.encodes)
		fail(Code::Unsupported, "{}: key {} is true; kvrun runs {} only as an encoder", k.g.name(),
		     k.key("attention.causal"), f.arch);
}

void read_text_input(const ConfigKeys& k, const Family& f, Config& c) {
	c.text_input.positions = rows_of(k.g, kPositionTable, 1 << 24);
	if (f.positions && !c.text_input.positions)
		fail(Code::Format, "{}: tensor {} is missing; get the file again", k.g.name(), kPositionTable);
	if (c.text_input.positions && c.text_input.positions < c.max_seq)
		fail(Code::Format, "{}: tensor {} has {} rows, key {} is {}; wrong or damaged file", k.g.name(), kPositionTable,
		     c.text_input.positions, k.key("context_length"), c.max_seq);
	c.text_input.normed = f.weighs_embedding;
	if (!c.encodes) return;
	c.text_input.types = rows_of(k.g, kTypeTable, 1 << 16);
	c.text_input.normed = k.g.find_tensor(fmt::format("{}.weight", kEmbeddingNorm)) != nullptr;
}

void read_text_head(const ConfigKeys& k, const Family& f, Config& c) {
	const Gguf& g = k.g;
	TextHead& h = c.text_head;
	h.pooling = pooling_of(k, "pooling_type", Pooling::Mean);
	h.dense_is_output = f.inputs_projected;
	for (size_t i = 0; i < 2; ++i) h.dense[i] = rows_of(g, dense_name(h, i), kMostDense);
	if (h.dense_is_output && !h.dense[0])
		fail(Code::Format, "{}: tensor {} is missing; get the file again", g.name(), dense_name(h, 0));
	h.hidden = g.find_tensor("cls.weight") != nullptr;
	h.hidden_bias = g.find_tensor("cls.bias") != nullptr;
	h.normed = g.find_tensor(kHiddenNorm) != nullptr;
	h.labels = rows_of(g, "cls.output.weight", kMostLabels);
	h.bias = g.find_tensor("cls.output.bias") != nullptr;
	if ((h.hidden_bias || h.normed) && !h.hidden)
		fail(Code::Format, "{}: tensor cls.weight is missing beside cls.bias or {}; get the file again", g.name(),
		     kHiddenNorm);
	if (h.hidden && !h.labels)
		fail(Code::Unsupported, "{}: tensor cls.output.weight is missing; kvrun runs classifiers that have it",
		     g.name());
	// A causal model's last token has seen all others.
	const Pooling usual = !c.encodes ? Pooling::Last : c.arch == "modern-bert" ? Pooling::Mean : Pooling::First;
	h.label_pooling = pooling_of(k, "classifier.pooling_type", usual);
	h.activation = c.arch == "modern-bert" ? Activation::Gelu : Activation::None;
	h.softmax = !c.encodes && h.labels > 1; // "yes" and "no" of Qwen3-Reranker
}

void check_encoder(const ConfigKeys& k, const Config& c) {
	if (!c.encodes) return;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		const Layer& layer = c.layers[l];
		if (!attends(layer) || !has_own_kv(c, l) || layer.recurrent.n_heads || layer.latent.rank ||
		    layer.window.chunked || c.streams.n > 1 || c.rounds > 1 || (c.layer_input_dim && !c.inputs_projected))
			fail(Code::Unsupported, "{}: key {} is false; kvrun runs {} only as a model that generates text",
			     k.g.name(), k.key("attention.causal"), c.arch);
	}
}

std::vector<float> alibi_slopes(uint32_t n_heads) {
	const uint32_t n = std::bit_floor(n_heads);
	std::vector<float> out(n_heads);
	for (uint32_t h = 0; h < n_heads; ++h)
		out[h] = float(h < n ? std::exp2(-8. * (h + 1) / n) : std::exp2(-4. * (2 * (h - n) + 1) / n));
	return out;
}

void add_text_input_specs(std::vector<TensorSpec>& out, const Config& c) {
	const TextInput& t = c.text_input;
	if (t.positions) out.push_back({kPositionTable, t.positions, c.dim, true});
	if (t.types) out.push_back({kTypeTable, t.types, c.dim, true});
	if (!t.normed) return;
	out.push_back({fmt::format("{}.weight", kEmbeddingNorm), 1, c.dim, false});
	if (c.norm == NormKind::LayerBiased) out.push_back({fmt::format("{}.bias", kEmbeddingNorm), 1, c.dim, false});
}

void add_text_head_specs(std::vector<TensorSpec>& out, const Config& c) {
	const TextHead& h = c.text_head;
	uint32_t from = c.dim;
	for (size_t i = 0; i < 2; ++i)
		if (h.dense[i]) out.push_back({dense_name(h, i), h.dense[i], from, true}), from = h.dense[i];
	if (h.hidden) out.push_back({"cls.weight", c.dim, c.dim, true});
	if (h.hidden_bias) out.push_back({"cls.bias", 1, c.dim, false});
	if (h.normed) out.push_back({kHiddenNorm, 1, c.dim, false});
	if (h.labels) out.push_back({"cls.output.weight", h.labels, c.dim, true});
	if (h.bias) out.push_back({"cls.output.bias", 1, h.labels, false});
}

} // namespace kvrun
