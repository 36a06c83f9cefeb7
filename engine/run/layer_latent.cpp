// Latent attention (MLA): projections around it. Heads differ only in the matrices that queries and outputs pass, so
// all of them read one latent.
#include "engine/run/layer_runner.h"
#include <cmath>

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
	multiply(std::span(keys).first(t.no_rope ? 1 : 2), r.h, Epilogue::None, decode);
	const Proj gate[] = {{r.out_gate, L.wq_gate, {}}};
	if (layer.output_gate) multiply(gate, r.h, Epilogue::None, decode);
	be_.rmsnorm(shaped(r.k, r.n, t.rank), shaped(r.k, r.n, t.rank), w.kv_norm, cfg_.norm_eps);
	const View nope = shaped(r.q_nope, r.n, layer.n_heads * t.nope_dim);
	View from = r.h;
	if (t.q_rank) {
		from = rows(latent_.q_a, 0, r.n);
		const Proj q_a[] = {{from, w.q_a, {}}};
		multiply(q_a, r.h, Epilogue::None, decode);
		be_.rmsnorm(from, from, w.q_a_norm, cfg_.norm_eps);
	}
	const Proj queries[] = {{nope, w.q_nope, {}}, {r.q_rope, w.q_rope, {}}};
	multiply(std::span(queries).first(t.no_rope ? 1 : 2), from, Epilogue::None, decode);
	if (r.index_q) project_index(l, r, from, decode);
	if (!r.expanded) project_heads(r.q, w.k_b, r.q_nope, decode);
}

void LayerRunner::write_latent_tables() {
	const auto write = [this](const View& to, const auto& values) {
		be_.write(*to.buf, to.at, std::as_bytes(std::span(values)));
		be_.submit();
		be_.wait();
	};
	std::vector<uint32_t> heads(latent_.heads.elements());
	for (size_t i = 0; i < heads.size(); ++i) heads[i] = uint32_t(i % latent_.heads.shape[1]);
	write(latent_.heads, heads);
	if (!latent_.units) return;
	const size_t n = latent_.units.shape[1];
	heads.resize(latent_.unit_heads.elements());
	for (size_t i = 0; i < heads.size(); ++i) heads[i] = uint32_t(i / n);
	write(latent_.unit_heads, heads);
	std::vector<float> units(latent_.units.elements());
	for (size_t i = 0; i < units.size() / n; ++i) units[i * n + i % n] = 1;
	write(latent_.units, units);
}

// A key of a head is W^T latent, where rows of W, attn_k_b, are of channels of the latent. The product of unit vectors
// with W has W's columns as rows.
void LayerRunner::make_key_rows(uint32_t l) {
	if (key_rows_of_ == l) return;
	const Layer& layer = cfg_.layers[l];
	const Latent& t = layer.latent;
	const uint32_t n = layer.n_heads * t.nope_dim;
	KV_ASSERT(be_.weight_row_bytes(DType::F16, t.rank) == 2 * t.rank);
	be_.sort_slots(latent_.unit_tiles, latent_.unit_heads, layer.n_heads);
	const View columns = shaped(latent_.columns ? latent_.columns : att_, layer.n_heads, t.nope_dim, t.rank);
	const Proj each[] = {{columns, weights_of(l).latent.k_b, {}}};
	be_.expert_matmul(each, latent_.units, {layer.n_heads, latent_.unit_heads, latent_.unit_tiles}, Epilogue::None,
	                  /*decode=*/false);
	be_.join_heads({shaped(latent_.key_rows, 1, n, t.rank)}, {shaped(columns, n, 1, t.rank)}, {}, n);
	key_rows_of_ = l;
}

void LayerRunner::expand(uint32_t l, const ExpandedMemory& to, uint32_t first, const KvRows& from, uint32_t n) {
	const Layer& layer = cfg_.layers[l];
	const Latent& t = layer.latent;
	const uint32_t n_heads = layer.n_heads;
	make_key_rows(l);
	for (uint32_t at = 0, m = 0; at < n; at += m) {
		m = std::min(most_rows_, n - at);
		const View latents = shaped(k_, m, t.rank), k = shaped(att_, m, n_heads * t.nope_dim),
		           v = shaped(latent_.values, m, n_heads * t.v_dim);
		be_.join_heads({shaped(latents, m, 1, t.rank)}, {from.k, from.first + at}, {}, m);
		const Proj keys[] = {{k, latent_.key_rows, {}}}, sums[] = {{v, weights_of(l).latent.v_b, {}}};
		multiply(keys, latents, Epilogue::None, /*decode=*/false);
		multiply(sums, latents, Epilogue::None, /*decode=*/false);
		be_.join_heads({to.k, first + at}, {shaped(k, m, n_heads, t.nope_dim)}, {from.v, from.first + at}, m);
		be_.join_heads({to.v, first + at}, {shaped(v, m, n_heads, t.v_dim)}, {}, m);
	}
}

void LayerRunner::attend_expanded(uint32_t l, const LayerRows& r, const ExpandedMemory& to, uint32_t first,
                                  const KvRows& own, const View& lse) {
	const Layer& layer = cfg_.layers[l];
	const uint32_t width = expanded_width(layer.latent);
	const View q = shaped(r.q, r.n, layer.n_heads, width), out = shaped(r.att, r.n, layer.n_heads, width);
	be_.join_heads({q}, {r.q_nope}, {r.q_rope}, r.n);
	expand(l, to, first, own, r.n);
	Softmax softmax = this->softmax(l, r);
	softmax.q_rope = {};
	be_.attend_prompt(out, lse, q, {to.k, to.v, first, {}, softmax}, nullptr);
	be_.join_heads({shaped(r.values, r.n, layer.n_heads, layer.latent.v_dim)}, {out}, {}, r.n);
}

// Attention divides scores by the root of the queries' width, which rotate() took into account.
void LayerRunner::absorb_queries(uint32_t l, const LayerRows& r) {
	const Layer& layer = cfg_.layers[l];
	project_heads(r.q, weights_of(l).latent.k_b, r.q_nope, /*decode=*/false);
	const float scale = std::sqrt(float(layer.head_dim) / float(expanded_width(layer.latent)));
	for (const View& part : {r.q, r.q_rope}) be_.activate(part, part, {}, {.scale = scale});
}

} // namespace kvrun
