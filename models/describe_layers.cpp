// Layers of a model as its family and its file describe them: sizes, windows, RoPE.
#include "engine/core/error.h"
#include "models/families.h"
#include <cmath>

namespace kvrun {

const Family* find_family(std::string_view arch) {
	for (const Family& f : families())
		if (arch == f.arch) return &f;
	return nullptr;
}

std::string family_names(std::string_view between) {
	std::string out;
	for (const Family& f : families()) {
		if (f.drafts != DraftKind::None) continue;
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
		c.layers[l].sinks &= window || !f.window_sinks;
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
	if (f.drafts == DraftKind::Assistant)
		for (Layer& l : c.layers) l.kv_layer = kOfTarget;
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
