// A recurrent layer: short convolution, gated delta rule, norm and gate of the output.
#include "engine/run/layer_runner.h"

namespace kvrun {

void LayerRunner::recur(uint32_t l, const LayerRows& r, std::span<const StateGroup> groups, bool decode) {
	constexpr float kEps = 1e-6f; // for norms of q and k; files have no key for it
	const Recurrent& how = cfg_.layers[l].recurrent;
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n;
	const View mixed = rows(recurrent_.mixed, 0, n), conv = rows(recurrent_.conv, 0, n),
	           gate = rows(recurrent_.gate, 0, n), beta = rows(recurrent_.beta, 0, n),
	           alpha = rows(recurrent_.alpha, 0, n);
	norm(r.h, r.x, weights_of(l).attn_norm);
	const Proj wide[] = {{mixed, w.qkv, {}}, {gate, w.gate, {}}}, narrow[] = {{beta, w.beta, {}}, {alpha, w.alpha, {}}};
	be_.matmul(wide, r.h, Epilogue::None, decode);
	be_.matmul(narrow, r.h, Epilogue::None, decode);
	for (const StateGroup& g : groups) {
		be_.short_conv(conv, mixed, w.conv, g.conv);
		be_.delta_rule(shaped(r.values, n, how.n_heads, how.v_dim), conv, {beta, alpha, w.rate, w.shift}, g.rule,
		               {how.n_key_heads, how.k_dim, how.tiled, kEps});
	}
	const View heads = shaped(r.values, n * how.n_heads, how.v_dim);
	be_.rmsnorm(heads, heads, w.norm, cfg_.norm_eps);
	be_.activate(r.values, gate, r.values, {.function = Activation::Silu});
}

} // namespace kvrun
