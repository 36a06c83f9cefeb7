// The prediction layer of a model on a device.
#include "engine/run/prediction_layer.h"
#include "engine/run/arena.h"
#include "engine/run/memory_plan.h"
#include "models/eagle.h"
#include <algorithm>

namespace kvrun {

// What the layer does not have of its own is the model's.
static void share_with_model(Weights& w, const Weights& model) {
	if (!w.embed) w.embed = model.embed;
	if (!w.final_norm.w) w.final_norm = model.final_norm;
	if (!w.lm_head) w.lm_head = model.lm_head;
}

PredictionLayer::PredictionLayer(Backend& be, const Gguf& g, Config cfg, const Weights& model,
                                 const LoadProgress& progress)
    : be_(be), cfg_(std::move(cfg)), model_(model), w_(load_weights(g, cfg_, be, progress)), layers_(cfg_),
      plan_(make_device_plan(parse_policy("fp16"), layers_.main_shape())), rope_(cfg_, cfg_.max_seq) {
	if (fused()) {
		state_layers_ = cfg_.fusion.layers;
		tokens_of_ = read_token_table(g, cfg_);
	} else {
		state_layers_ = {cfg_.prediction.block};
		w_.lm_head_b = model.lm_head_b;
	}
	share_with_model(w_, model);
}

uint64_t PredictionLayer::activation_bytes(const Config& c) {
	const uint64_t states = c.fusion.layers.size() * c.target_dim;
	const uint64_t row = 4 * (5 * uint64_t(c.dim) + states + 2 + 1) + 4 * uint64_t(rope_width(c)); // prepare()'s arena
	return kRows * row + kvrun::activation_bytes(c, kRows);
}

void PredictionLayer::prepare(size_t cache_bytes) {
	pool_ = std::make_unique<KvPool>(be_, 1, cache_bytes);
	runner_ = std::make_unique<LayerRunner>(be_, cfg_, w_, kRows);
	top_.emplace(*runner_);
	allocate(be_, memory_, "prediction rows", [&](Arena& a) {
		x_ = a.take(DType::F32, kRows, cfg_.dim);
		pairs_ = a.take(DType::F32, 2 * kRows, cfg_.dim), joined_ = a.take(DType::F32, 2 * kRows, cfg_.dim);
		if (fused()) fused_ = a.take(DType::F32, kRows, state_width());
		order_ = a.take(DType::U32, 2 * kRows), tokens_.ids = a.take(DType::U32, kRows);
		for (size_t i = 0; i < cfg_.ropes.size(); ++i)
			positions_[i] = a.take(DType::F32, kRows, cfg_.ropes[i].dim / 2, 2);
		if (cfg_.temperature.scale != 0) positions_[kTemperature] = a.take(DType::F32, kRows);
	});
	std::vector<uint32_t> order;
	for (uint32_t i = 0; i < kRows; ++i) order.insert(order.end(), {i, kRows + i});
	be_.write(*order_.buf, order_.at, std::as_bytes(std::span(order)));
	be_.submit();
	be_.wait();
}

std::unique_ptr<KvSequence> PredictionLayer::sequence() {
	return std::make_unique<KvSequence>(be_, plan_, *pool_, std::min(cfg_.max_seq, 4096u));
}

size_t PredictionLayer::bytes() const {
	return w_.bytes + memory_.bytes() + scratch_.bytes() + (runner_ ? runner_->bytes() + pool_->allocated_bytes() : 0);
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
void PredictionLayer::join(const LayerRows& r, const PredictionRows& in) {
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
void PredictionLayer::fuse(const LayerRows& r, const PredictionRows& in) {
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

void PredictionLayer::step(KvSequence& seq, const PredictionRows& in, bool guess) {
	const uint32_t n = uint32_t(in.tokens.size());
	KV_ASSERT(n >= 1 && n <= kRows && in.states.size() == size_t(n) * (in.own ? cfg_.dim : state_width()));
	std::vector<StepRow> step;
	for (uint32_t i = 0; i < n; ++i) step.push_back({&seq, true, i});
	KvStep kv(be_, scratch_, *pool_, step, layers_.n_heads(false));
	runner_->write_tokens(tokens_, in.tokens);
	for (size_t i = 0; i < positions_.size(); ++i) {
		if (!positions_[i]) continue;
		host_rope_[i].clear();
		if (i == kTemperature)
			rope_.append_temperature(in.first, n, host_rope_[i]);
		else
			for (uint32_t at = in.first; at < in.first + n; ++at) rope_[i].append(at, host_rope_[i]);
		be_.write(*positions_[i].buf, positions_[i].at, std::as_bytes(std::span(host_rope_[i])));
	}
	be_.at_layer(0);
	const LayerRows r = runner_->rows_of(0, x_, tokens_, positions_, 0, n);
	kv.before_layer(0);
	if (fused())
		fuse(r, in);
	else
		join(r, in);
	for (uint32_t i = 0; i < n;) {
		uint32_t same = 1;
		const KvDst dst = kv.destination(0, i, same);
		runner_->rotate(0, r, i, same, dst);
		i += same;
	}
	kv.stored(0);
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
	if (guess) guess_ = top_->get();
	if (guess && !tokens_of_.empty()) guess_ = tokens_of_[guess_];
}

} // namespace kvrun
