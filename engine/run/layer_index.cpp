// The indexer of a layer: queries and keys, by which the tokens are chosen that rows attend to.
#include "engine/run/layer_runner.h"

namespace kvrun {

View LayerRunner::index_queries(uint32_t l, const LayerRows& r) {
	const Layer& layer = cfg_.layers[l];
	const Indexer& x = cfg_.indexer;
	const IndexWeights& w = weights_of(l).index;
	const Rope& rope = cfg_.ropes[layer.rope];
	const View q = shaped(r.index_q, r.n, x.n_heads, x.dim), k = shaped(r.index_k, r.n, 1, x.dim);
	be_.rope_store(q, k, k, {r.rope[layer.rope], rope.dim, rope.neox}, {w.q_norm, w.k_norm, cfg_.norm_eps},
	               {nowhere_, nowhere_, shaped(nowhere_, r.n, 1, 2), 1});
	return q;
}

void LayerRunner::mean_index_keys(const LayerRows& r, std::span<const StateGroup> states) {
	if (cfg_.indexer.block == 1) return;
	for (const StateGroup& g : states)
		be_.short_conv(rows(index_.mean, 0, r.n), r.index_k, index_.shares, g.conv, {.silu = false});
}

void LayerRunner::store_index_keys(uint32_t l, const LayerRows& r, uint32_t first, uint32_t n, const KvDst& dst) {
	const Layer& layer = cfg_.layers[l];
	const Indexer& x = cfg_.indexer;
	const IndexWeights& w = weights_of(l).index;
	const Rope& rope = cfg_.ropes[layer.rope];
	const bool single = x.block == 1;
	const View table = r.rope[single ? layer.rope : kBlockStart];
	const auto one_head = [&](const View& v) { return shaped(rows(v, first, n), n, 1, x.dim); };
	const View k = one_head(single ? r.index_k : index_.mean);
	const View q = one_head(single ? index_.mean : r.index_k); // not used: the op turns queries, too
	be_.rope_store(q, k, k, {rows(table, first, n), rope.dim, rope.neox}, {w.q_norm, w.k_norm, cfg_.norm_eps}, dst);
}

} // namespace kvrun
