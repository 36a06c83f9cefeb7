// Latent attention (MLA): projections around it. Heads differ only in the matrices that queries and outputs pass, so
// all of them read one latent.
#include "engine/run/layer_runner.h"

namespace kvrun {

// Of each head of x (n, n_heads, channels) its own rows of w, as an expert whose choice is certain.
void LayerRunner::project_heads(const View& out, const View& w, const View& x, bool decode) {
	const uint32_t n = out.shape[0], n_heads = out.shape[1];
	ExpertRows heads{n_heads, rows(latent_.heads, 0, n)};
	if (!decode) {
		heads.tiles = rows(latent_.tiles, 0, expert_tiles(n * n_heads, n_heads));
		be_.sort_slots(heads.tiles, heads.ids, n_heads);
	}
	const Proj each[] = {{out, w, {}}};
	be_.expert_matmul(each, shaped(x, n * n_heads, uint32_t(x.elements() / n / n_heads)), heads, Epilogue::None,
	                  decode);
}

void LayerRunner::project_in_latent(uint32_t l, const LayerRows& r, bool decode) {
	const Layer& layer = cfg_.layers[l];
	const Latent& t = layer.latent;
	const LayerWeights& L = weights_of(l);
	const LatentWeights& w = L.latent;
	norm(r.h, r.x, L.attn_norm);
	const Proj keys[] = {{r.k, w.kv_a, {}}, {r.v, w.k_rope, {}}};
	be_.matmul(keys, r.h, Epilogue::None, decode);
	be_.rmsnorm(shaped(r.k, r.n, t.rank), shaped(r.k, r.n, t.rank), w.kv_norm, cfg_.norm_eps);
	const View nope = rows(latent_.q_nope, 0, r.n);
	View from = r.h;
	if (t.q_rank) {
		from = rows(latent_.q_a, 0, r.n);
		const Proj q_a[] = {{from, w.q_a, {}}};
		be_.matmul(q_a, r.h, Epilogue::None, decode);
		be_.rmsnorm(from, from, w.q_a_norm, cfg_.norm_eps);
	}
	const Proj queries[] = {{nope, w.q_nope, {}}, {r.q_rope, w.q_rope, {}}};
	be_.matmul(queries, from, Epilogue::None, decode);
	project_heads(r.q, w.k_b, shaped(nope, r.n, layer.n_heads, t.nope_dim), decode);
}

} // namespace kvrun
