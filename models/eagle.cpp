// EAGLE-3 layers in files.
#include "models/eagle.h"
#include "models/families.h"
#include <algorithm>

namespace kvrun {

constexpr size_t kStates = 3; // layers of the model whose inputs are read

static std::vector<uint32_t> target_layers(const ConfigKeys& k, const Config& of) {
	std::vector<uint32_t> out;
	for (const int64_t l : k.g.ints(k.key("target_layers"))) {
		if (l < 0 || l > of.n_layers)
			fail(Code::Invalid, "{}: key {} has layer {}, the model has {} layers; take the file that was made for it",
			     k.g.name(), k.key("target_layers"), l, of.n_layers);
		out.push_back(uint32_t(l));
	}
	if (out.size() != kStates)
		fail(Code::Unsupported, "{}: key {} has {} layers; kvrun runs EAGLE-3 with {}", k.g.name(),
		     k.key("target_layers"), out.size(), kStates);
	return out;
}

void read_fusion(const ConfigKeys& k, const Config& of, Config& c) {
	if (const uint32_t n = k.u32("block_count"); n != 1)
		fail(Code::Unsupported, "{}: {} layers; kvrun runs EAGLE-3 with one", k.g.name(), n);
	Fusion& f = c.fusion;
	f.layers = target_layers(k, of);
	c.target_dim = k.u32("target_hidden_size");
	if (c.target_dim != of.dim)
		fail(Code::Invalid,
		     "{}: drafts for a model of {} channels, this one has {}; take the file that was made for it", k.g.name(),
		     c.target_dim, of.dim);
	if (of.streams.n > 1)
		fail(Code::Unsupported, "{}: drafts from one residual stream, this model has {}; give --draft lookup",
		     k.g.name(), of.streams.n);
	f.vocab = of.vocab;
	f.normed = k.flag("norm_before_fc", false);
	f.normed_residual = k.flag("norm_before_residual", false);
	f.own_embedding = k.g.find_tensor("token_embd.weight") != nullptr;
	const GgufTensor* head = k.g.find_tensor("output.weight");
	f.own_head = head != nullptr;
	if (head && head->rows() > of.vocab)
		fail(Code::Invalid, "{}: guesses {} tokens, the model has {}; take the file that was made for it", k.g.name(),
		     head->rows(), of.vocab);
	c.vocab = head ? uint32_t(head->rows()) : of.vocab;
}

Config read_eagle(const Gguf& g, const Config& of) {
	Config c = read_config(g, &of);
	for (const auto& [own, name] :
	     {std::pair{c.fusion.own_embedding, "token_embd.weight"}, {c.fusion.own_head, "output.weight"}})
		if (!own && c.dim != of.dim)
			fail(Code::Format, "{}: tensor {} is missing, and the model's has {} channels, not {}; get the file again",
			     g.name(), name, of.dim, c.dim);
	read_token_table(g, c);
	return c;
}

void add_fusion_specs(std::vector<TensorSpec>& out, const Config& c) {
	const uint32_t states = uint32_t(c.fusion.layers.size()) * c.target_dim;
	if (c.fusion.own_embedding) out.push_back({"token_embd.weight", c.fusion.vocab, c.dim, true});
	if (c.fusion.normed) out.push_back({kFusionNorm, 1, states, false});
	out.push_back({kFusionJoin, c.dim, states, true});
	out.push_back({kFusionStateNorm, 1, c.dim, false});
}

std::vector<uint32_t> read_token_table(const Gguf& g, const Config& c) {
	const GgufTensor* t = g.find_tensor(kTokenTable);
	if (!t && c.vocab == c.fusion.vocab) return {};
	if (!t)
		fail(Code::Format,
		     "{}: tensor {} is missing, which says what the {} rows of the output are; get the file again", g.name(),
		     kTokenTable, c.vocab);
	if (t->type != DType::I64 || t->rows() != 1 || t->cols() != c.vocab)
		fail(Code::Format, "{}: tensor {} is {} of {} x {}, expected {} I64; the file is damaged", g.name(),
		     kTokenTable, dtype_info(t->type).name, t->rows(), t->cols(), c.vocab);
	std::vector<int64_t> ids(c.vocab);
	g.read(*t, 0, std::as_writable_bytes(std::span(ids)));
	const auto wrong = std::ranges::find_if(ids, [&](int64_t id) { return id < 0 || id >= c.fusion.vocab; });
	if (wrong != ids.end())
		fail(Code::Format, "{}: tensor {}: element {} is {}, the model has {} tokens; wrong or damaged file", g.name(),
		     kTokenTable, wrong - ids.begin(), *wrong, c.fusion.vocab);
	return {ids.begin(), ids.end()};
}

} // namespace kvrun
