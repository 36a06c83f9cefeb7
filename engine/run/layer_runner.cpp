// Runs layers from their descriptions, for all backends.
#include "engine/run/layer_runner.h"
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include <cmath>

namespace kvrun {

// Largest number of KV heads whose keys and values are not stored: of a layer without its own.
static uint32_t skipped_heads(const Config& cfg) {
	uint32_t n = cfg.indexer.block ? 1 : 0; // its queries are turned without keys
	for (uint32_t l = 0; l < cfg.n_layers; ++l)
		if (cfg.layers[l].latent.out_groups) n = 1; // so are all heads
	for (uint32_t l = 0; l < cfg.n_layers; ++l)
		if (attends(cfg.layers[l]) && !has_own_kv(cfg, l)) n = std::max(n, cfg.layers[l].n_kv_heads);
	return n;
}

// Elements of the widest row that a projection of a layer with attention and a dense MLP reads.
static uint32_t widest_input(const Config& cfg) {
	uint32_t n = cfg.dim;
	for (const Layer& l : cfg.layers) n = std::max({n, l.n_heads * l.head_dim, l.hidden_dim});
	return n;
}

// Most channels that norms without weights have.
static uint32_t unit_norms(const Config& cfg) {
	uint32_t n = 0;
	for (const Layer& l : cfg.layers)
		if (l.v_norm || l.qk_norm == QkNorm::HeadUnit || l.qk_norm == QkNorm::HeadGain)
			n = std::max(n, l.head_dim);
		else if (l.recurrent.step_norm == StepNorm::Unit)
			n = std::max({n, l.recurrent.rank, l.recurrent.k_dim});
		else if (l.recurrent.kind == RecurrentKind::Removal)
			n = std::max(n, l.recurrent.n_heads);
	if (cfg.streams.kind == StreamKind::Manifold) n = cfg.streams.n * cfg.dim;
	for (const Layer& l : cfg.layers)
		if (l.latent.out_groups) n = std::max(n, l.head_dim);
	const bool of_rows = cfg.streams.kind == StreamKind::AltUp || cfg.embedding_norm;
	return of_rows || is_bare(cfg.norm) ? std::max(n, cfg.dim) : n;
}

static uint32_t most_of_layers(const Config& cfg, auto&& of) {
	uint32_t n = 0;
	for (const Layer& l : cfg.layers) n = std::max(n, of(l));
	return n;
}
static uint32_t narrow_values(const Layer& l) { return l.n_heads * l.narrow_v; }
static uint32_t heads_with_gains(const Layer& l) { return l.qk_norm == QkNorm::HeadGain ? l.n_heads : 0; }

LayerRunner::LayerRunner(Backend& be, const Config& cfg, const Weights& w, uint32_t most_rows, const Loras* loras)
    : be_(be), cfg_(cfg), w_(w), most_rows_(most_rows), loras_(be, cfg, w, loras, most_rows) {
	KV_ASSERT(most_rows >= 1);
	const Widest most = widest(cfg);
	allocate(be, memory_, "activations", [&](Arena& a) {
		h_ = a.take(DType::F32, most_rows, cfg.dim);
		q_ = a.take(DType::F32, most_rows, most.q);
		att_ = a.take(DType::F32, most_rows, most.q);
		k_ = a.take(DType::F32, most_rows, most.kv);
		v_ = a.take(DType::F32, most_rows, most.kv);
		mlp_.lay(a, cfg, most_rows);
		recurrent_.lay(a, cfg, most_rows);
		latent_.lay(a, cfg, most_rows);
		streams_.lay(a, cfg, most_rows);
		index_.lay(a, cfg, most_rows);
		blocks_.lay(a, cfg, most_rows);
		if (!w.limits.empty()) within_ = a.take(DType::F32, most_rows, widest_input(cfg));
		if (const uint32_t n = most_of_layers(cfg, narrow_values)) narrow_ = a.take(DType::F32, most_rows, n);
		if (has_branch_rows(cfg)) branch_ = a.take(DType::F32, most_rows, cfg.dim);
		if (const uint32_t n = unit_norms(cfg)) ones_ = a.take(DType::F32, n);
		if (const uint32_t n = most_of_layers(cfg, heads_with_gains))
			gains_ = a.take(DType::F32, most_rows, n), zeros_ = a.take(DType::U32, most_rows);
		if (const uint32_t n = skipped_heads(cfg)) nowhere_ = a.take(DType::U32, most_rows, n, 2);
		if (cfg.encodes) return;
		final_ = a.take(DType::F32, kLogitRows, cfg.dim);
		logits_ = a.take(DType::F32, kLogitRows, cfg.vocab);
		block_max_ = a.take(DType::U32, kLogitRows, ceil_div(cfg.vocab, uint32_t(KV_LOGIT_BLOCK)));
		candidates_ = a.take(DType::U32, kLogitRows, KV_CANDIDATE_WORDS);
	});
	const auto fill = [&](const View& v, const auto& value) {
		if (!v) return;
		const std::vector values(v.elements(), value);
		be.write(*v.buf, v.at, std::as_bytes(std::span(values)));
		be.submit();
		be.wait();
	};
	fill(nowhere_, kSkip);
	fill(ones_, 1.f);
	fill(zeros_, 0u);
	fill(latent_.no_key, 0.f);
	if (latent_.no_key) fill(latent_.q_rope, 0.f);
	fill(index_.shares, 1 / float(std::max(cfg.indexer.block, 1u)));
	if (streams_.others) {
		std::vector<float> others(streams_.others.elements(), 1);
		if (!cfg.streams.hyper())
			for (size_t i = 0; i < others.size(); i += cfg.streams.n) others[i] = 0;
		be.write(*streams_.others.buf, streams_.others.at, std::as_bytes(std::span(others)));
		be.submit();
		be.wait();
	}
	if (latent_.heads) write_latent_tables();
}

// Whether outputs of a layer's parts are added to the residual stream unchanged.
static bool adds_plainly(const Layer& layer, bool norm) {
	return (!norm || layer.norms_sum) && layer.residual_scale == 1;
}

bool LayerRunner::has_branch_rows(const Config& cfg) {
	if (cfg.streams.hyper()) return true;
	for (const Layer& l : cfg.layers)
		if (!adds_plainly(l, l.attn_out_norm) || !adds_plainly(l, l.mlp_out_norm) || l.experts.weigh_input ||
		    l.sums_twice)
			return true;
	return false;
}

LayerRows LayerRunner::rows_of(uint32_t l, const View& x, const TokenViews& tokens, const RopeViews& rope,
                               uint32_t first, uint32_t n) const {
	KV_ASSERT(n <= most_rows_);
	const Layer& layer = cfg_.layers[l];
	const auto heads = [&](const View& v, uint32_t n_heads) { return shaped(v, n, n_heads, layer.head_dim); };
	LayerRows r{n,
	            rows(x, first, n),
	            rows(h_, 0, n),
	            heads(q_, layer.n_heads),
	            heads(att_, layer.n_heads),
	            heads(k_, layer.n_kv_heads),
	            shaped(layer.latent.no_rope ? latent_.no_key : v_, n, layer.n_kv_heads, second_dim(layer)),
	            rows(mlp_.gate, 0, n),
	            rows(mlp_.up, 0, n),
	            {}};
	r.tokens = tokens.part(first, n);
	if (branch_) r.branch = rows(branch_, 0, n);
	if (cfg_.streams.n > 1) r.streams = streams_of(x, first, n), r.x = rows(streams_.x, 0, n);
	if (cfg_.streams.kind == StreamKind::Attended) r.sum = stream(r.streams, cfg_.streams.own(l), n);
	if (cfg_.first_values) r.first_values = r.x, r.first_values.at += x.bytes();
	if (streams_.laurel) r.laurel = rows(streams_.laurel, 0, n);
	if (streams_.inject) r.inject = rows(streams_.inject, 0, n);
	if (has_indexer(cfg_, l)) {
		r.index_q = rows(index_.q, 0, n), r.index_k = rows(index_.k, 0, n);
		if (index_.weights) r.index_weights = rows(index_.weights, 0, n);
		if (index_.gates) r.index_gates = rows(index_.gates, 0, n);
	}
	if (layer.output_gate) r.out_gate = shaped(recurrent_.out_gate, n, gate_width(layer));
	if (recurrent_.values) r.values = rows(recurrent_.values, 0, n);
	if (layer.latent.rank) {
		r.q_rope = shaped(latent_.q_rope, n, layer.n_heads, layer.latent.rope_dim);
		const Latent& t = layer.latent;
		if (!t.out_groups) r.q_nope = shaped(latent_.q_nope, n, layer.n_heads, t.nope_dim);
		r.values = shaped(latent_.values, n, t.out_groups ? t.out_width() : layer.n_heads * t.v_dim);
	}
	for (size_t i = 0; i < cfg_.ropes.size(); ++i) r.rope[i] = rows(rope[i], first, n);
	for (const size_t i : {kTemperature, kBlockStart, kLongStart})
		if (rope[i]) r.rope[i] = rows(rope[i], first, n);
	return r;
}

LayerRows LayerRunner::last_row(const LayerRows& r) {
	LayerRows out = r;
	out.n = 1;
	for (View* v : {&out.x, &out.h, &out.q, &out.att, &out.k, &out.v, &out.gate, &out.up, &out.branch, &out.out_gate,
	                &out.values, &out.laurel, &out.sum, &out.inject, &out.rope[0], &out.rope[1]})
		if (*v) *v = rows(*v, r.n - 1, 1);
	out.tokens = r.tokens.part(r.n - 1, 1);
	out.streams.first += r.n - 1;
	return out;
}

void LayerRunner::write_tokens(const TokenViews& to, std::span<const uint32_t> tokens,
                               std::span<const uint32_t> positions) {
	be_.write(*to.ids.buf, to.ids.at, std::as_bytes(tokens));
	if (to.places) {
		KV_ASSERT(positions.size() == tokens.size());
		std::vector<uint32_t> places(positions.begin(), positions.end());
		for (uint32_t& p : places) p = std::min(p, cfg_.text_input.positions - 1); // guesses behind the last position
		be_.write(*to.places.buf, to.places.at, std::as_bytes(std::span(places)));
	}
	if (!to.inputs) return;
	std::vector<uint32_t> inputs(tokens.begin(), tokens.end());
	for (uint32_t& x : inputs) x *= cfg_.n_layers;
	be_.write(*to.inputs.buf, to.inputs.at, std::as_bytes(std::span(inputs)));
}

void LayerRunner::embed(const View& x, uint32_t first, const TokenViews& tokens, bool decode,
                        const std::function<void(const View&)>& replace) {
	const uint32_t n = tokens.ids.shape[0];
	const View to = cfg_.streams.hyper() ? rows(h_, 0, n) : rows(x, first, n);
	be_.embed(to, w_.embed, tokens.ids);
	if (cfg_.embedding_scale != 1) be_.activate(to, to, {}, {.scale = cfg_.embedding_scale});
	if (cfg_.text_input.normed && !cfg_.encodes)
		norm(to, to, w_.text.norm); // TextEncoder adds positions and types first
	if (cfg_.embedding_norm) be_.rmsnorm(to, to, rows(ones_, 0, cfg_.dim), cfg_.norm_eps);
	if (tokens.places) {
		const View added = rows(h_, 0, n);
		be_.embed(added, w_.text.positions, tokens.places);
		be_.activate(to, added, {}, {.add = true});
	}
	if (replace) replace(to);
	if (cfg_.streams.n > 1) spread(x, first, n, decode);
}

View LayerRunner::part(const View& w, uint32_t first, uint32_t n) const {
	View p = w;
	p.at += first * be_.weight_row_bytes(w.type, w.shape[1]), p.shape[0] = n;
	return p;
}

void LayerRunner::norm(const View& out, const View& x, const NormWeights& w, float eps) {
	const View weights = is_bare(cfg_.norm) ? rows(ones_, 0, cfg_.dim) : w.w;
	const uint32_t n = cfg_.norm_groups;
	const auto parts = [&](const View& v) { return n == 1 ? v : shaped(v, x.shape[0] * n, cfg_.dim / n); };
	if (is_rms(cfg_.norm))
		be_.rmsnorm(parts(out), parts(x), weights, eps);
	else
		be_.layer_norm(out, x, weights, w.b, eps);
}

const View& LayerRunner::input(uint32_t l, const LayerRows& r) {
	if (!cfg_.layers[l].attn_norm) return r.x;
	norm(r.h, r.x, weights_of(l).attn_norm);
	return r.h;
}

void LayerRunner::norm_matmul(std::span<const Proj> projs, const View& h, const View& x, const NormWeights& w,
                              Epilogue epilogue, bool decode) {
	if (cfg_.norm == NormKind::Rms && cfg_.norm_groups == 1 && !loras_.change(projs) && !within_)
		return be_.norm_matmul(projs, h, x, w.w, cfg_.norm_eps, epilogue, decode);
	norm(h, x, w);
	multiply(projs, h, epilogue, decode);
}

void LayerRunner::multiply(std::span<const Proj> projs, const View& x, Epilogue epilogue, bool decode) {
	if (!loras_.change(projs) && !within_) return be_.matmul(projs, x, epilogue, decode);
	const bool gated = epilogue == Epilogue::SwiGLU; // reads what the adapters or limits have changed
	if (within_) {
		KV_ASSERT(epilogue != Epilogue::Add);
		multiply_within_limits(projs, x, decode);
	} else {
		be_.matmul(projs, x, gated ? Epilogue::None : epilogue, decode);
		loras_.add(projs, x, decode);
	}
	if (gated) be_.activate(projs[0].out, projs[0].out, projs[1].out, {.function = Activation::Silu});
}

void LayerRunner::multiply_within_limits(std::span<const Proj> projs, const View& x, bool decode) {
	const auto clamp = [&](const View& to, const View& from, float low, float high) {
		be_.activate(to, from, {}, {.function = Activation::Clamp, .range = {low, high}});
	};
	const View within = shaped(within_, x.shape[0], uint32_t(x.row_elements()));
	const Limits* clamped = nullptr; // `within` is x between these; q, k and v usually share them
	for (const Proj& p : projs) {
		const Limits* limited = limits_of(w_, p.w);
		const std::span<const Proj> one(&p, 1);
		if (!limited) {
			be_.matmul(one, x, Epilogue::None, decode);
			continue;
		}
		const Limits& l = *limited;
		if (!clamped || clamped->in_low != l.in_low || clamped->in_high != l.in_high)
			clamp(within, x, l.in_low, l.in_high);
		clamped = &l;
		be_.matmul(one, within, Epilogue::None, decode);
		clamp(p.out, p.out, l.out_low, l.out_high);
	}
}

void LayerRunner::project_in(uint32_t l, const LayerRows& r, bool decode) {
	const Layer& layer = cfg_.layers[l];
	if (layer.latent.out_groups) return project_in_shared(l, r, decode);
	if (layer.latent.rank) return project_in_latent(l, r, decode);
	const LayerWeights& L = weights_of(l);
	const Proj all[] = {{r.q, L.wq, L.bq}, {r.k, L.wk, L.bk}, {made_values(layer, r), L.wv, L.bv}};
	const bool owns = has_own_kv(cfg_, l);
	const std::span<const Proj> qkv = std::span(all).first(!owns ? 1 : layer.v_is_k || layer.value_experts.n ? 2 : 3);
	const bool shared = layer.mlp_input == MlpInput::Parallel || layer.output_gate || layer.indexed ||
	                    layer.laurel_rank || layer.value_experts.n;
	if (shared) { // others read the normed rows, too
		const View& h = input(l, r);
		multiply(qkv, h, Epilogue::None, decode);
		if (layer.value_experts.n) mix_value_experts(layer, L.value_experts, h, r, decode);
		const Proj more[] = {{r.out_gate, L.wq_gate, {}}, {r.index_q, L.index.q, {}}, {r.index_k, L.index.k, {}}};
		const size_t first = layer.output_gate ? 0 : 1, end = layer.indexed ? 3 : 1;
		if (first < end) multiply(std::span(more).subspan(first, end - first), h, Epilogue::None, decode);
		if (layer.laurel_rank) project_laurel(l, r, decode);
	} else if (!layer.attn_norm) {
		multiply(qkv, r.x, Epilogue::None, decode);
	} else {
		norm_matmul(qkv, r.h, r.x, L.attn_norm, Epilogue::None, decode);
	}
	if (owns) place_values(layer, r);
	limit(layer, {r.q, r.k, r.v});
	if (owns && layer.v_norm) norm_values(layer, r);
	if (layer.qk_norm == QkNorm::HeadLayer || layer.qk_norm == QkNorm::HeadOwn) {
		const auto norm_heads = [&](const View& x, uint32_t n_heads, const View& weights) {
			const View heads = shaped(x, r.n * n_heads, layer.head_dim);
			if (layer.qk_norm == QkNorm::HeadOwn)
				be_.rmsnorm(heads, heads, weights, cfg_.norm_eps);
			else
				be_.layer_norm(heads, heads, weights, {}, cfg_.norm_eps);
		};
		norm_heads(r.q, layer.n_heads, L.q_norm);
		if (owns) norm_heads(r.k, layer.n_kv_heads, L.k_norm);
	}
	if (layer.qk_norm == QkNorm::Row && layer.qk_norm_bias) {
		be_.layer_norm(r.q, r.q, L.q_norm, L.q_norm_b, cfg_.norm_eps);
		if (owns) be_.layer_norm(r.k, r.k, L.k_norm, L.k_norm_b, cfg_.norm_eps);
	} else if (layer.qk_norm == QkNorm::Row) {
		be_.rmsnorm(r.q, r.q, L.q_norm, cfg_.norm_eps);
		if (owns) be_.rmsnorm(r.k, r.k, L.k_norm, cfg_.norm_eps);
	}
}

void LayerRunner::limit(const Layer& layer, std::initializer_list<View> of) {
	if (layer.qkv_limit == kUnlimited) return;
	for (const View& v : of)
		be_.activate(v, v, {}, {.function = Activation::Clamp, .range = {-layer.qkv_limit, layer.qkv_limit}});
}

View LayerRunner::made_values(const Layer& layer, const LayerRows& r) {
	return layer.narrow_v ? shaped(narrow_, r.n, layer.n_kv_heads * layer.narrow_v) : r.v;
}

void LayerRunner::place_values(const Layer& layer, const LayerRows& r) {
	if (!layer.narrow_v) return;
	const uint32_t n = layer.n_kv_heads;
	be_.join_heads({shaped(r.v, r.n, n, layer.head_dim)}, {shaped(narrow_, r.n, n, layer.narrow_v)}, {}, r.n);
}

void LayerRunner::norm_values(const Layer& layer, const LayerRows& r) {
	const auto heads = [&](const View& v) { return shaped(v, r.n * layer.n_kv_heads, layer.head_dim); };
	be_.rmsnorm(heads(r.v), heads(layer.v_is_k ? r.k : r.v), rows(ones_, 0, layer.head_dim), cfg_.norm_eps);
}

void LayerRunner::project_kv(uint32_t l, const LayerRows& r, const View& x, bool decode) {
	const Layer& layer = cfg_.layers[l];
	const LayerWeights& L = weights_of(l);
	const Proj all[] = {{r.k, L.wk, L.bk}, {made_values(layer, r), L.wv, L.bv}};
	multiply(std::span(all).first(layer.v_is_k ? 1 : 2), x, Epilogue::None, decode);
	place_values(layer, r);
	limit(layer, {r.k, r.v});
	if (layer.v_norm) norm_values(layer, r);
}

void LayerRunner::project_pairs(uint32_t l, const LayerRows& r, const View& pairs, bool decode) {
	const LayerWeights& L = weights_of(l);
	const Proj all[] = {{r.q, L.wq, L.bq}, {r.k, L.wk, L.bk}, {r.v, L.wv, L.bv}};
	multiply(all, pairs, Epilogue::None, decode);
}

void LayerRunner::rotate(uint32_t l, const LayerRows& r, uint32_t first, uint32_t n, const KvDst& to) {
	const Layer& layer = cfg_.layers[l];
	KvDst dst = to;
	if (!has_own_kv(cfg_, l)) dst = {nowhere_, nowhere_, shaped(nowhere_, n, layer.n_kv_heads, 2), 1};
	const LayerWeights& L = weights_of(l);
	const Rope& rope = cfg_.ropes[layer.rope];
	const View q = rows(r.expanded ? r.q_nope : r.q, first, n);
	HeadNorm head_norm{{}, {}, cfg_.norm_eps, layer.qk_norm == QkNorm::HeadLast};
	if (layer.qk_norm == QkNorm::Head || head_norm.weigh_last) head_norm.q = L.q_norm, head_norm.k = L.k_norm;
	const bool gains = layer.qk_norm == QkNorm::HeadGain;
	if (layer.qk_norm == QkNorm::HeadUnit || gains) head_norm.q = head_norm.k = rows(ones_, 0, layer.head_dim);
	const bool latent = layer.latent.rank != 0;
	const View rotated = latent ? rows(r.q_rope, first, n) : q;
	if (layer.latent.out_groups)
		return store_latents(rotated, rows(r.k, first, n), rows(r.v, first, n), rows(r.rope[layer.rope], first, n),
		                     dst);
	be_.rope_store(rotated, rows(r.k, first, n), rows(r.v, first, n),
	               {rows(r.rope[layer.rope], first, n), rope.dim, rope.neox, latent}, head_norm, dst);
	if (gains) {
		const View each = shaped(gains_, n, layer.n_heads);
		be_.embed(each, shaped(L.q_norm, 1, layer.n_heads), rows(zeros_, 0, n));
		be_.activate(q, each, q, {.each = layer.head_dim});
	}
	// attention multiplies by 1 / sqrt(head_dim)
	const uint32_t head_dim = r.expanded ? expanded_width(layer.latent) : layer.head_dim;
	const float scale = layer.attention_scale * std::sqrt(float(head_dim));
	if (layer.attention_scale != 0 && scale != 1) be_.activate(q, q, {}, {.scale = scale});
	if (latent && scale != 1) be_.activate(rotated, rotated, {}, {.scale = scale});
	if (cfg_.temperature.scale == 0 || (cfg_.temperature.unrotated && rope.rotates)) return;
	for (const View& part : std::array{q, rotated}) {
		const uint32_t width = uint32_t(part.row_elements());
		const View before = shaped(rows(r.att, first, n), n, width); // attention has not yet written these rows
		be_.copy(before, part);
		be_.expert_sum(part, shaped(before, n, 1, width), rows(r.rope[kTemperature], first, n));
		if (!latent) return;
	}
}

Softmax LayerRunner::softmax(uint32_t l, const LayerRows& r) const {
	// the sinks of a layer with blocks are those of attention to entries, which may see nothing else
	return {cfg_.layers[l].score_softcap, cfg_.layers[l].blocks.tokens ? View() : weights_of(l).sinks, r.q_rope};
}

void LayerRunner::add(const Layer& layer, const LayerRows& r, const Proj& proj, const View& from,
                      const NormWeights* out_norm, bool decode) {
	if (adds_plainly(layer, out_norm) && !cfg_.streams.hyper()) {
		const Proj into[] = {{r.sum ? r.sum : r.x, proj.w, proj.bias}};
		multiply(into, from, Epilogue::Add, decode);
		if (out_norm) norm(r.x, r.x, *out_norm, out_norm_eps());
		return;
	}
	const Proj into[] = {{r.branch, proj.w, proj.bias}};
	multiply(into, from, Epilogue::None, decode);
	if (out_norm) norm(r.branch, r.branch, *out_norm, out_norm_eps());
	add_branch(layer, r);
}

void LayerRunner::add_branch(const Layer& layer, const LayerRows& r) {
	if (cfg_.streams.hyper())
		be_.stream_sum(r.streams, {shaped(r.branch, 1, r.n, cfg_.dim)}, shaped(r.inject, r.n, cfg_.streams.n, 1));
	else
		be_.activate(r.x, r.branch, {}, {.scale = layer.residual_scale, .add = true});
}

void LayerRunner::project_out(uint32_t l, const LayerRows& r, bool decode) {
	const Layer& layer = cfg_.layers[l];
	if (!layer.mixes) return run_mlp_part(l, r, decode);
	const LayerWeights& L = weights_of(l);
	if (layer.experts.early) choose(layer.experts, L.experts, r.x, 1, expert_scale(layer), r.tokens, decode);
	if (layer.experts.at_input) run_experts_at_input(layer, L.experts, r, decode);
	const Latent& latent = layer.latent;
	if (latent.out_groups) {
		turn(r.att, r.rope[layer.rope], cfg_.ropes[layer.rope], {}, /*back=*/true);
		project_heads(shaped(r.values, r.n, latent.out_groups, latent.out_rank), L.latent.v_b, r.att, decode);
	} else if (latent.rank && !r.expanded)
		project_heads(shaped(r.values, r.n, layer.n_heads, latent.v_dim), L.latent.v_b, r.att, decode);
	View attended = latent.rank ? r.values : r.att;
	if (layer.narrow_v) {
		const View narrow = shaped(narrow_, r.n, layer.n_heads, layer.narrow_v);
		be_.join_heads({narrow}, {r.att}, {}, r.n);
		attended = shaped(narrow, r.n, layer.n_heads * layer.narrow_v);
	}
	if (layer.output_gate) {
		if (layer.gate_scale != 1) be_.activate(r.out_gate, r.out_gate, {}, {.scale = layer.gate_scale});
		be_.activate(attended, r.out_gate, attended,
		             {.function = layer.gate_function, .each = layer.gate_by_head ? value_dim(layer) : 1});
	}
	if (layer.attn_gain != 1) be_.activate(attended, attended, {}, {.scale = layer.attn_gain});
	if (layer.sub_norms) be_.rmsnorm(attended, attended, L.attn_sub_norm, cfg_.norm_eps);
	const bool mlp_first = layer.mlp_input == MlpInput::Beside; // it reads what attention has not been added to
	if (mlp_first) run_mlp_part(l, r, decode);
	const NormWeights* out_norm = layer.attn_out_norm ? &L.attn_out_norm : nullptr;
	if (layer.sums_twice) be_.copy(r.branch, r.x);
	if (attends(layer)) add(layer, r, {{}, L.wo, L.bo}, attended, out_norm, decode);
	if (layer.sums_twice) {
		be_.activate(r.x, r.branch, {}, {.add = true});
		norm(r.x, r.x, L.attn_second_norm);
	}
	if (layer.recurrent.n_heads) add(layer, r, {{}, L.recurrent.out, {}}, r.values, out_norm, decode);

	if (layer.laurel_rank) add_laurel(r);
	if (cfg_.streams.hyper()) connect(r, L.mlp_mixer, decode);
	if (r.sum) attend_streams(r.x, r.streams, cfg_.streams.own(l) + 1, L.mlp_mixer);
	if (!mlp_first) run_mlp_part(l, r, decode);
	if (cfg_.streams.kind == StreamKind::AltUp) correct_streams(l, r, decode);
	if (cfg_.layer_input_dim) add_layer_input(l, r, decode);
	if (layer.output_scale != 1) be_.activate(r.x, r.x, {}, {.scale = layer.output_scale});
	if (layer.embedding_gain != 0) {
		embed(r.h, 0, r.tokens, decode);
		be_.activate(r.x, r.h, {}, {.scale = layer.embedding_gain, .add = true});
	}
	if (layer.ends_round) norm(r.x, r.x, w_.final_norm, cfg_.norm_eps);
}

// x += norm(proj(activation(gate of x) * input)). The layer input depends on the token alone: the layer's part of a
// projection of the embedding, plus a row of a table where there is one. Each layer computes its own: kept for all
// layers, the inputs of a prompt would take more memory than its residual stream.
void LayerRunner::add_layer_input(uint32_t l, const LayerRows& r, bool decode) {
	const uint32_t n = r.n, dim = cfg_.layer_input_dim;
	const LayerWeights& L = weights_of(l);
	const View input = shaped(r.gate, n, dim), other = shaped(r.up, n, dim);
	const auto scale_by = [&](float scale) {
		if (scale != 1) be_.activate(r.h, r.h, {}, {.scale = scale});
	};
	const float root = std::sqrt(float(cfg_.dim));
	be_.embed(r.h, w_.embed, r.tokens.ids);
	if (r.replace) {
		scale_by(cfg_.embedding_scale);
		(*r.replace)(r.h);
		scale_by(1 / root);
	} else {
		scale_by(cfg_.embedding_scale / root); // usually 1
	}
	const Proj own[] = {{input, part(w_.input_model_proj, l * dim, dim), {}}};
	multiply(own, r.h, Epilogue::None, decode);
	be_.rmsnorm(input, input, w_.input_proj_norm, cfg_.norm_eps);
	if (!cfg_.inputs_projected) {
		be_.embed(other, part(w_.input_table, l, (cfg_.vocab - 1) * cfg_.n_layers + 1), r.tokens.inputs);
		be_.activate(input, other, {}, {.scale = std::sqrt(float(dim)), .add = true});
	}
	const Proj gate[] = {{other, L.input_gate, {}}};
	multiply(gate, r.x, Epilogue::None, decode);
	be_.activate(other, other, input,
	             {.function = cfg_.layers[l].activation, .scale = cfg_.inputs_projected ? 1 : std::sqrt(0.5f)});
	const Proj out[] = {{r.branch, L.input_proj, {}}};
	multiply(out, other, Epilogue::None, decode);
	be_.rmsnorm(r.branch, r.branch, L.input_norm, cfg_.norm_eps);
	if (cfg_.streams.n > 1) return add_to_others(r, r.branch);
	be_.activate(r.x, r.branch, {}, {.add = true});
}

void LayerRunner::read_rows(const View& x, std::vector<float>& out) {
	out.resize(x.bytes() / sizeof(float));
	be_.read(*x.buf, x.at, std::as_writable_bytes(std::span(out)));
}

void LayerRunner::read_states(const View& x, std::vector<float>& out) {
	KV_ASSERT(x.shape[0] <= kLogitRows);
	const View states = rows(final_, 0, x.shape[0]);
	if (has_final_norm()) norm(states, x, w_.final_norm);
	read_rows(has_final_norm() ? states : x, out);
}

void LayerRunner::logits(const View& x, bool decode) {
	const uint32_t n = x.shape[0];
	KV_ASSERT(n <= kLogitRows);
	const View out = rows(logits_, 0, n);
	const Proj head[] = {{out, w_.lm_head, w_.lm_head_b}};
	if (!has_final_norm())
		multiply(head, x, Epilogue::None, decode);
	else
		norm_matmul(head, rows(final_, 0, n), x, w_.final_norm, Epilogue::None, decode);
	if (cfg_.logit_scale != 1 || cfg_.logit_softcap > 0)
		be_.activate(out, out, {}, {.scale = cfg_.logit_scale, .cap = cfg_.logit_softcap});
}

void LayerRunner::read_logits(uint32_t first, uint32_t n, std::span<float> out) {
	const View y = rows(logits_, first, n);
	KV_ASSERT(out.size_bytes() == y.bytes());
	be_.read(*y.buf, y.at, std::as_writable_bytes(out));
}

void LayerRunner::add_to_logits(uint32_t first, const View& w, const View& x, bool decode) {
	const Proj to[] = {{rows(logits_, first, x.shape[0]), w, {}}};
	be_.matmul(to, x, Epilogue::Add, decode);
}

void LayerRunner::read_candidates(uint32_t first, uint32_t n, uint32_t k, CandidateLists& out) {
	const View lists = rows(candidates_, first, n);
	be_.candidates(lists, rows(block_max_, first, n), rows(logits_, first, n), k);
	be_.read(*lists.buf, lists.at, std::as_writable_bytes(out.words(n)));
}

} // namespace kvrun
