// The prediction layer of a model.
#include "engine/run/prediction_layer.h"

namespace kvrun {

PredictionLayer::PredictionLayer(Backend& be, const Gguf& g, Config cfg, const Weights& model,
                                 const LoadProgress& progress)
    : DraftLayers(be, g, cfg, model, cfg.fusion.layers.empty() ? std::vector{cfg.prediction.block} : cfg.fusion.layers,
                  progress) {}

uint64_t PredictionLayer::activation_bytes(const Config& c) {
	const uint64_t states = c.fusion.layers.size() * c.target_dim;
	return kRows * (row_bytes(c) + 4 * (4 * uint64_t(c.dim) + states + 2));
}

void PredictionLayer::lay(Arena& a) {
	pairs_ = a.take(DType::F32, 2 * kRows, cfg_.dim), joined_ = a.take(DType::F32, 2 * kRows, cfg_.dim);
	if (fused()) fused_ = a.take(DType::F32, kRows, state_width());
	order_ = a.take(DType::U32, 2 * kRows);
}

void PredictionLayer::fill() {
	std::vector<uint32_t> order;
	for (uint32_t i = 0; i < kRows; ++i) order.insert(order.end(), {i, kRows + i});
	be_.write(*order_.buf, order_.at, std::as_bytes(std::span(order)));
}

// (n, 2 * dim): norms of rows a and b (n, dim), side by side. a is not in the second half of pairs_, nor b in the
// first.
View PredictionLayer::side_by_side(const View& a, const View& a_norm, const View& b, const View& b_norm) {
	const uint32_t n = a.shape[0];
	const View both = rows(joined_, 0, 2 * n);
	if (n > 1 && be_.weight_row_bytes(DType::F32, cfg_.dim) == cfg_.dim * sizeof(float)) { // pairs_ is a table of rows
		runner_->norm(rows(pairs_, 0, n), a, {a_norm, {}});
		runner_->norm(rows(pairs_, kRows, n), b, {b_norm, {}});
		be_.embed(both, pairs_, rows(order_, 0, 2 * n));
	} else {
		for (uint32_t i = 0; i < n; ++i) {
			runner_->norm(rows(both, 2 * i, 1), rows(a, i, 1), {a_norm, {}});
			runner_->norm(rows(both, 2 * i + 1, 1), rows(b, i, 1), {b_norm, {}});
		}
	}
	return shaped(both, n, 2 * cfg_.dim);
}

// x = join . (norm of the embedding | norm of the hidden state, which has passed the final norm before).
void PredictionLayer::join(const LayerRows& r, const DraftRows& in) {
	const uint32_t n = r.n;
	const View states = rows(pairs_, kRows, n);
	be_.write(*states.buf, states.at, std::as_bytes(in.states));
	runner_->embed(x_, 0, r.tokens.ids, /*decode=*/true);
	runner_->norm(states, states, (in.own ? w_ : model_).final_norm);
	const View both = side_by_side(r.x, w_.prediction.embed_norm, states, w_.prediction.state_norm);
	const Proj into[] = {{r.x, w_.prediction.join, {}}};
	be_.matmul(into, both, Epilogue::None, /*decode=*/true);
	runner_->project_in(0, r, /*decode=*/true);
}

// x = join . (states of all layers), or the layer's own state; q, k, v of (norm of the embedding | norm of x).
void PredictionLayer::fuse(const LayerRows& r, const DraftRows& in) {
	const uint32_t n = r.n;
	const View embedded = rows(pairs_, 0, n);
	const View from = in.own ? r.x : rows(fused_, 0, n);
	be_.write(*from.buf, from.at, std::as_bytes(in.states));
	if (!in.own) {
		if (w_.fusion.norm) be_.rmsnorm(from, from, w_.fusion.norm, cfg_.norm_eps);
		const Proj into[] = {{r.x, w_.fusion.join, {}}};
		be_.matmul(into, from, Epilogue::None, /*decode=*/true);
	}
	be_.embed(embedded, w_.embed, r.tokens.ids);
	const View both = side_by_side(embedded, w_.layers[0].attn_norm.w, r.x, w_.fusion.state_norm);
	if (cfg_.fusion.normed_residual) runner_->norm(r.x, r.x, {w_.fusion.state_norm, {}});
	runner_->project_pairs(0, r, both, /*decode=*/true);
}

void PredictionLayer::step(KvSequence& seq, const DraftRows& in, bool guess) {
	const auto n = uint32_t(in.tokens.size());
	KV_ASSERT(in.states.size() == size_t(n) * (in.own ? cfg_.dim : state_width()));
	std::vector<StepRow> step;
	for (uint32_t i = 0; i < n; ++i) step.push_back({&seq, true, i});
	KvStep kv(be_, scratch_[0], *pool_, step, layers_.n_heads(false));
	place(in.first, in.tokens);
	be_.at_layer(0);
	const LayerRows r = rows_of(0, n);
	kv.before_layer(0);
	if (fused())
		fuse(r, in);
	else
		join(r, in);
	store(0, r, kv);
	kv.attend(0, r.att, r.q, runner_->softmax(0, r));
	runner_->project_out(0, r, /*decode=*/true);
	if (guess) {
		const View last = rows(r.x, n - 1, 1);
		runner_->logits(last, /*decode=*/true);
		runner_->read_rows(last, state_);
		top_->read();
	}
	be_.submit();
	be_.wait();
	kv.end();
	if (guess) guess_ = token(top_->get());
}

void PredictionLayer::guess(DraftCache& c, uint32_t position, uint32_t, uint32_t most, std::vector<uint32_t>& out) {
	for (uint32_t i = 0; i < most; ++i) {
		if (i) step(*c.all, {position + i, {&out.back(), 1}, state_, /*own=*/true}, /*guess=*/true);
		out.push_back(guess_);
	}
}

} // namespace kvrun
