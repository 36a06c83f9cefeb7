// Files whose layers draft for one model from its hidden states.
#include "models/fusion.h"
#include "models/dflash.h"
#include "models/eagle.h"
#include <algorithm>

namespace kvrun {

static std::vector<uint32_t> target_layers(const ConfigKeys& k, const Config& of) {
	std::vector<uint32_t> out;
	const std::string key = k.key("target_layers");
	for (const int64_t l : k.g.ints(key)) {
		if (l < 0 || l > of.n_layers)
			fail(Code::Invalid, "{}: key {} has layer {}, the model has {} layers; take the file that was made for it",
			     k.g.name(), key, l, of.n_layers);
		out.push_back(uint32_t(l));
	}
	if (out.empty() || out.size() > of.n_layers + 1u)
		fail(Code::Format, "{}: key {} has {} layers, the model {}; the file is damaged", k.g.name(), key, out.size(),
		     of.n_layers);
	return out;
}

void read_fusion(const ConfigKeys& k, const Config& of, Config& c) {
	Fusion& f = c.fusion;
	f.layers = target_layers(k, of);
	c.target_dim = k.u32("target_hidden_size", k.u32("embedding_length"));
	if (c.target_dim != of.dim)
		fail(Code::Invalid,
		     "{}: drafts for a model of {} channels, this one has {}; take the file that was made for it", k.g.name(),
		     c.target_dim, of.dim);
	if (of.streams.n > 1)
		fail(Code::Unsupported, "{}: drafts from one residual stream, this model has {}; give --draft lookup",
		     k.g.name(), of.streams.n);
	f.vocab = of.vocab;
	f.own_embedding = k.g.find_tensor("token_embd.weight") != nullptr;
	const GgufTensor* head = k.g.find_tensor("output.weight");
	f.own_head = head != nullptr;
	if (head && head->rows() > of.vocab)
		fail(Code::Invalid,
		     "{}: tensor output.weight has {} rows, the model {} tokens; take the file that was made for it",
		     k.g.name(), head->rows(), of.vocab);
	c.vocab = head ? uint32_t(head->rows()) : of.vocab;
}

void add_fusion_specs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.fusion.own_embedding) out.push_back({"token_embd.weight", c.fusion.vocab, c.dim, true});
	out.push_back({kFusionJoin, c.dim, fused_states(c), true});
	fused_format(find_family(c.arch)->drafts)->add_specs(out, c);
}

const FusedFormat* fused_format(DraftKind kind) {
	static const FusedFormat formats[] = {
	    {DraftKind::Eagle, "EAGLE-3 layers", read_eagle_keys, [](const ConfigKeys&, Layer&) {}, add_eagle_specs, {}},
	    {DraftKind::Block,
	     "DFlash layers",
	     read_dflash_keys,
	     see_dflash_traits,
	     add_dflash_specs,
	     {"conf_proj.weight", "conf_proj.bias"}}, // of DSpark's confidence head
	};
	const auto f = std::ranges::find(formats, kind, &FusedFormat::kind);
	return f == std::end(formats) ? nullptr : f;
}

// Config::fusion's tokens.
static std::vector<uint32_t> read_token_table(const Gguf& g, const Config& c) {
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

Config read_fused(const Gguf& g, const Config& of) {
	Config c = read_config(g, &of);
	// Neither changes the order of logits; what is added to logits (DSpark) takes them without.
	c.logit_scale = 1, c.logit_softcap = 0;
	const bool own[] = {c.fusion.own_embedding, c.fusion.own_head};
	const char* names[] = {"token_embd.weight", "output.weight"};
	for (int i = 0; i < 2; ++i)
		if (!own[i] && c.dim != of.dim)
			fail(Code::Format, "{}: tensor {} is missing, and the model's has {} channels, not {}; get the file again",
			     g.name(), names[i], of.dim, c.dim);
	c.fusion.tokens = read_token_table(g, c);
	return c;
}

} // namespace kvrun
