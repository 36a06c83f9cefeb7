// Runs layers from their descriptions, for all backends.
#include "engine/run/layer_runner.h"
#include "engine/core/round.h"
#include "engine/run/arena.h"

namespace kvrun {

LayerRunner::LayerRunner(Backend& be, const Config& cfg, const Weights& w, uint32_t most_rows)
    : be_(be), cfg_(cfg), w_(w), most_rows_(most_rows) {
	KV_ASSERT(most_rows >= 1);
	allocate(be, memory_, "activations", [&](Arena& a) {
		h_ = a.take(DType::F32, most_rows, cfg.dim);
		q_ = a.take(DType::F32, most_rows, cfg.n_heads, cfg.head_dim);
		att_ = a.take(DType::F32, most_rows, cfg.n_heads, cfg.head_dim);
		k_ = a.take(DType::F32, most_rows, cfg.n_kv_heads, cfg.head_dim);
		v_ = a.take(DType::F32, most_rows, cfg.n_kv_heads, cfg.head_dim);
		gate_ = a.take(DType::F32, most_rows, cfg.hidden_dim);
		up_ = a.take(DType::F32, most_rows, cfg.hidden_dim);
		final_ = a.take(DType::F32, kLogitRows, cfg.dim);
		logits_ = a.take(DType::F32, kLogitRows, cfg.vocab);
		block_max_ = a.take(DType::U32, kLogitRows, ceil_div(cfg.vocab, uint32_t(KV_LOGIT_BLOCK)));
		candidates_ = a.take(DType::U32, kLogitRows, KV_CANDIDATE_WORDS);
	});
}

LayerRows LayerRunner::rows_of(const View& x, const View& rope, uint32_t first, uint32_t n) const {
	KV_ASSERT(n <= most_rows_);
	return {n,
	        rows(x, first, n),
	        rows(h_, 0, n),
	        rows(q_, 0, n),
	        rows(att_, 0, n),
	        rows(k_, 0, n),
	        rows(v_, 0, n),
	        rows(gate_, 0, n),
	        rows(up_, 0, n),
	        rows(rope, first, n)};
}

LayerRows LayerRunner::last_row(const LayerRows& r) {
	const auto last = [&](const View& v) { return rows(v, r.n - 1, 1); };
	return {1,         last(r.x), last(r.h),    last(r.q),  last(r.att),
	        last(r.k), last(r.v), last(r.gate), last(r.up), last(r.rope)};
}

void LayerRunner::embed(const View& x, const View& tokens) { be_.embed(x, w_.embed, tokens); }

void LayerRunner::project_in(uint32_t l, const LayerRows& r, bool decode) {
	const LayerWeights& L = w_.layers[l];
	const Proj qkv[] = {{r.q, L.wq, L.bq}, {r.k, L.wk, L.bk}, {r.v, L.wv, L.bv}};
	be_.norm_matmul(qkv, r.h, r.x, L.attn_norm, cfg_.norm_eps, Epilogue::None, decode);
}

void LayerRunner::rotate(uint32_t l, const LayerRows& r, uint32_t first, uint32_t n, const KvDst& dst) {
	const LayerWeights& L = w_.layers[l];
	be_.rope_store(rows(r.q, first, n), rows(r.k, first, n), rows(r.v, first, n),
	               {rows(r.rope, first, n), cfg_.rope.dim, cfg_.rope.neox}, {L.q_norm, L.k_norm, cfg_.norm_eps}, dst);
}

void LayerRunner::project_out(uint32_t l, const LayerRows& r, bool decode) {
	const LayerWeights& L = w_.layers[l];
	const Proj out[] = {{r.x, L.wo, {}}};
	be_.matmul(out, r.att, Epilogue::Add, decode);
	const Proj gate_up[] = {{r.gate, L.w_gate, {}}, {r.up, L.w_up, {}}};
	be_.norm_matmul(gate_up, r.h, r.x, L.ffn_norm, cfg_.norm_eps, Epilogue::SwiGLU, decode);
	const Proj down[] = {{r.x, L.w_down, {}}};
	be_.matmul(down, r.gate, Epilogue::Add, decode);
}

void LayerRunner::read_rows(const View& x, std::vector<float>& out) {
	out.resize(x.bytes() / sizeof(float));
	be_.read(*x.buf, x.at, std::as_writable_bytes(std::span(out)));
}

void LayerRunner::logits(const View& x, bool decode) {
	const uint32_t n = x.shape[0];
	KV_ASSERT(n <= kLogitRows);
	const Proj head[] = {{rows(logits_, 0, n), w_.lm_head, {}}};
	be_.norm_matmul(head, rows(final_, 0, n), x, w_.final_norm, cfg_.norm_eps, Epilogue::None, decode);
}

void LayerRunner::read_logits(uint32_t first, uint32_t n, std::span<float> out) {
	const View y = rows(logits_, first, n);
	KV_ASSERT(out.size_bytes() == y.bytes());
	be_.read(*y.buf, y.at, std::as_writable_bytes(out));
}

void LayerRunner::read_candidates(uint32_t n, uint32_t k, CandidateLists& out) {
	const View lists = rows(candidates_, 0, n);
	be_.candidates(lists, rows(block_max_, 0, n), rows(logits_, 0, n), k);
	be_.read(*lists.buf, lists.at, std::as_writable_bytes(out.words(n)));
}

} // namespace kvrun
