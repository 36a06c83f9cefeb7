// The indexer of a layer: queries and keys, by which the tokens are chosen that rows attend to.
#include "engine/run/layer_runner.h"

namespace kvrun {

void LayerRunner::project_index(uint32_t l, const LayerRows& r, const View& latents, bool decode) {
	const IndexWeights& w = weights_of(l).index;
	const Proj queries[] = {{r.index_q, w.q, {}}},
	           keys[] = {{r.index_k, w.k, {}}, {r.index_weights, w.heads, {}}, {r.index_gates, w.gate, {}}};
	multiply(queries, latents, Epilogue::None, decode);
	multiply(std::span(keys).first(w.gate ? 3 : 2), r.h, Epilogue::None, decode);
	if (cfg_.indexer.of_entries) return; // the norm is that of keys of blocks
	be_.layer_norm(r.index_k, r.index_k, w.k_norm.w, w.k_norm.b, cfg_.indexer.norm_eps);
}

HeadNorm LayerRunner::index_norms(uint32_t l) const {
	const IndexWeights& w = weights_of(l).index;
	if (cfg_.indexer.of_entries) return {{}, w.k_norm.w, cfg_.norm_eps};
	if (cfg_.indexer.of_latent) return {{}, {}, cfg_.norm_eps};
	return {w.q_norm, w.k_norm.w, cfg_.norm_eps};
}

// The first channel that RoPE turns.
uint32_t LayerRunner::first_turned() const {
	return cfg_.indexer.of_entries ? cfg_.indexer.dim - cfg_.ropes[0].dim : 0;
}

View LayerRunner::index_queries(uint32_t l, const LayerRows& r) {
	const Layer& layer = cfg_.layers[l];
	const Indexer& x = cfg_.indexer;
	const Rope& rope = cfg_.ropes[layer.rope];
	const View q = shaped(r.index_q, r.n, x.n_heads, x.dim), k = shaped(r.index_k, r.n, 1, x.dim);
	be_.rope_store(q, k, k, {r.rope[layer.rope], rope.dim, x.neox, false, first_turned()}, index_norms(l),
	               {nowhere_, nowhere_, shaped(nowhere_, r.n, 1, 2), 1});
	return q;
}

void LayerRunner::mean_index_keys(uint32_t l, const LayerRows& r, std::span<const StateGroup> states) {
	if (cfg_.indexer.block == 1) return;
	if (cfg_.indexer.of_entries) {
		for (const StateGroup& g : states)
			be_.pool_blocks(rows(index_.mean, 0, r.n), r.index_k, r.index_gates, weights_of(l).index.places, g.conv);
		return;
	}
	const View& weights = cfg_.indexer.gated ? weights_of(l).index.places : index_.shares;
	for (const StateGroup& g : states)
		be_.short_conv(rows(index_.mean, 0, r.n), r.index_k, weights, g.conv, {.silu = false, .gates = r.index_gates});
}

void LayerRunner::store_index_keys(uint32_t l, const LayerRows& r, uint32_t first, uint32_t n, const KvDst& dst) {
	const Layer& layer = cfg_.layers[l];
	const Indexer& x = cfg_.indexer;
	const Rope& rope = cfg_.ropes[layer.rope];
	const bool single = x.block == 1;
	const View table = r.rope[single ? layer.rope : kBlockStart];
	const auto one_head = [&](const View& v) { return shaped(rows(v, first, n), n, 1, x.dim); };
	const View k = one_head(single ? r.index_k : index_.mean);
	const View q = one_head(single ? index_.mean : r.index_k); // not used: the op turns queries, too
	be_.rope_store(q, k, k, {rows(table, first, n), rope.dim, x.neox, false, first_turned()}, index_norms(l), dst);
}

} // namespace kvrun
