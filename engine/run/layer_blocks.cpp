// Layers that attend to a window and to entries of blocks (DeepSeek V4): projections, entries, what joins both.
#include "engine/run/layer_runner.h"

namespace kvrun {

// Turns heads of x (n, heads, channels) in place, behind a norm of each head by these weights, if there are any.
void LayerRunner::turn(const View& x, const View& table, const Rope& rope, const View& norm, bool back) {
	const uint32_t n = x.shape[0], width = x.shape[2];
	const View none = shaped(v_, n, 1, width); // nothing is stored
	be_.rope_store(x, none, none, {table, rope.dim, rope.neox, false, width - rope.dim, back},
	               {norm, {}, cfg_.norm_eps}, {nowhere_, nowhere_, shaped(nowhere_, n, 1, 2), 1});
}

void LayerRunner::project_in_shared(uint32_t l, const LayerRows& r, bool decode) {
	const Layer& layer = cfg_.layers[l];
	const LayerWeights& L = weights_of(l);
	const LatentWeights& w = L.latent;
	const Rope& rope = cfg_.ropes[layer.rope];
	const View latents = rows(latent_.q_a, 0, r.n), &table = r.rope[layer.rope];
	norm(r.h, r.x, L.attn_norm);
	const Proj in[] = {{latents, w.q_a, {}}, {r.k, w.kv_a, {}}};
	multiply(in, r.h, Epilogue::None, decode);
	be_.rmsnorm(latents, latents, w.q_a_norm, cfg_.norm_eps);
	const Proj queries[] = {{r.q, w.q_nope, {}}};
	multiply(queries, latents, Epilogue::None, decode);
	turn(r.q, table, rope, rows(ones_, 0, layer.head_dim));
	turn(shaped(r.k, r.n, 1, layer.head_dim), table, rope, w.kv_norm);
	if (r.index_q) project_index(l, r, latents, decode);
}

const View& LayerRunner::starts_of(const Blocks& b, const LayerRows& r) const {
	return r.rope[b.tokens == cfg_.indexer.block ? kBlockStart : kLongStart];
}

void LayerRunner::make_entries(uint32_t l, const LayerRows& r, std::span<const StateGroup> states, bool decode) {
	const Layer& layer = cfg_.layers[l];
	const BlockWeights& w = weights_of(l).blocks;
	const uint32_t dim = layer.head_dim, width = layer.blocks.width(dim);
	const View kv = shaped(blocks_.kv, r.n, width), gates = shaped(blocks_.gates, r.n, width),
	           entry = shaped(blocks_.entry, r.n, dim);
	const Proj both[] = {{kv, w.kv, {}}, {gates, w.gate, {}}};
	multiply(both, r.h, Epilogue::None, decode);
	for (const StateGroup& g : states) be_.pool_blocks(entry, kv, gates, w.places, g.conv);
	turn(shaped(entry, r.n, 1, dim), starts_of(layer.blocks, r), cfg_.ropes[layer.rope], w.norm);
}

void LayerRunner::store_entries(uint32_t l, const LayerRows& r, uint32_t first, uint32_t n, const KvDst& dst) {
	const uint32_t dim = cfg_.layers[l].head_dim;
	const View entry = shaped(blocks_.entry, r.n, 1, dim);
	store_latents(rows(r.q_rope, first, n), rows(entry, first, n), rows(r.v, first, n),
	              rows(starts_of(cfg_.layers[l].blocks, r), first, n), dst);
}

// Of latents that are turned already; the key beside them is zeros, which turn to zeros.
void LayerRunner::store_latents(const View& q_rope, const View& k, const View& v, const View& table, const KvDst& dst) {
	const uint32_t n = k.shape[0], width = v.shape[2];
	be_.rope_store(q_rope, k, v, {shaped(table, n, width / 2, 2), width, false, true}, {{}, {}, cfg_.norm_eps}, dst);
}

BlockRows LayerRunner::block_rows(uint32_t l, uint32_t n) const {
	const Layer& layer = cfg_.layers[l];
	return {shaped(blocks_.att, n, layer.n_heads, layer.head_dim), shaped(blocks_.lse[0], n, layer.n_heads),
	        shaped(blocks_.lse[1], n, layer.n_heads)};
}

Softmax LayerRunner::block_softmax(uint32_t l, const LayerRows& r) const {
	return {cfg_.layers[l].score_softcap, weights_of(l).sinks, r.q_rope};
}

// With normalisers a and b the sums have weights exp(a) / (exp(a) + exp(b)) = sigmoid(a - b), and sigmoid(b - a).
void LayerRunner::join_blocks(uint32_t l, const LayerRows& r) {
	const auto [att, own, other] = block_rows(l, r.n);
	const uint32_t each = cfg_.layers[l].head_dim;
	be_.activate(own, other, {}, {.scale = -1, .add = true});
	be_.activate(other, own, {}, {.scale = -1});
	be_.activate(r.att, own, r.att, {.function = Activation::Sigmoid, .each = each});
	be_.activate(att, other, att, {.function = Activation::Sigmoid, .each = each});
	be_.activate(r.att, att, {}, {.add = true});
}

} // namespace kvrun
