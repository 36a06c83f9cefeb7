// Assistants: files with a few layers that guess the next tokens of one model.
#include "models/assistant.h"
#include "models/families.h"

namespace kvrun {

uint32_t layer_attended(const Config& of, const Layer& layer) {
	uint32_t found = UINT32_MAX;
	for (uint32_t l = 0; l < of.n_layers; ++l)
		if (has_own_kv(of, l) && bool(of.layers[l].window) == bool(layer.window)) found = l;
	if (found == UINT32_MAX) return found;
	const Layer& with = of.layers[found];
	const bool same = with.head_dim == layer.head_dim && with.n_kv_heads == layer.n_kv_heads && !with.latent.rank;
	return same ? found : UINT32_MAX;
}

Config read_assistant(const Gguf& g, const Config& of) {
	Config c = read_config(g, &of);
	const char* arch = find_family(c.arch)->assists;
	if (of.arch != arch)
		fail(Code::Invalid, "{}: drafts for models of {}; this model is one of {}", g.name(), arch, of.arch);
	if (c.target_dim != of.dim)
		fail(Code::Invalid,
		     "{}: drafts for a model of {} channels, this one has {}; take the assistant that was made "
		     "for it",
		     g.name(), c.target_dim, of.dim);
	for (const Layer& a : c.layers)
		for (const Layer& b : c.layers)
			if (bool(a.window) == bool(b.window) && a.n_heads != b.n_heads)
				fail(Code::Unsupported,
				     "{}: layers of one kind have {} and {} heads; kvrun runs assistants where they are "
				     "equal",
				     g.name(), a.n_heads, b.n_heads);
	for (uint32_t l = 0; l < c.n_layers; ++l)
		if (const Layer& layer = c.layers[l]; layer_attended(of, layer) == UINT32_MAX)
			fail(Code::Invalid,
			     "{}: layer {} attends to {} KV heads of {} channels{}, which the last such layer of this "
			     "model does not have; take the assistant that was made for it",
			     g.name(), l, layer.n_kv_heads, layer.head_dim, layer.window ? " in a window" : "");
	return c;
}

void add_assistant_specs(std::vector<TensorSpec>& out, const Config& c) {
	out.push_back({kAssistantIn, c.dim, 2 * c.target_dim, true});
	out.push_back({kAssistantOut, c.target_dim, c.dim, true});
}

} // namespace kvrun
