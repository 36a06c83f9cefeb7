// The prediction layer of a model.
#include "engine/run/prediction_layer.h"
#include <algorithm>

namespace kvrun {

PredictionLayer::PredictionLayer(Backend& be, const Gguf& g, Config cfg, const Weights& model,
                                 const LoadProgress& progress)
    : DraftLayers(be, g, cfg, model, cfg.fusion.layers.empty() ? std::vector{cfg.prediction.block} : cfg.fusion.layers,
                  progress) {}

uint64_t PredictionLayer::activation_bytes(const Config& c) {
	const uint64_t states = c.fusion.layers.size() * c.target_dim;
	return kRows * (row_bytes(c) + 4 * (5 * uint64_t(c.dim) + states + 3));
}

void PredictionLayer::lay(Arena& a) {
	pairs_ = a.take(DType::F32, 2 * kRows, cfg_.dim), joined_ = a.take(DType::F32, 2 * kRows, cfg_.dim);
	if (fused()) fused_ = a.take(DType::F32, kRows, state_width());
	order_ = a.take(DType::U32, 2 * kRows);
	last_ = a.take(DType::F32, kRows, cfg_.dim), last_order_ = a.take(DType::U32, kRows);
}

void PredictionLayer::fill() {
	std::vector<uint32_t> order;
	for (uint32_t i = 0; i < kRows; ++i) order.insert(order.end(), {i, kRows + i});
	be_.write(*order_.buf, order_.at, std::as_bytes(std::span(order)));
}

bool PredictionLayer::is_table() const {
	return be_.weight_row_bytes(DType::F32, cfg_.dim) == cfg_.dim * sizeof(float);
}

// The wanted rows of x, one below the other.
View PredictionLayer::gathered(const View& x, std::span<const uint32_t> wanted) {
	const auto n = uint32_t(wanted.size());
	bool together = true;
	for (uint32_t i = 0; i < n; ++i) together &= wanted[i] == wanted[0] + i;
	if (together) return rows(x, wanted[0], n);
	const View ids = rows(last_order_, 0, n), out = rows(last_, 0, n);
	if (is_table()) {
		be_.write(*ids.buf, ids.at, std::as_bytes(wanted));
		be_.embed(out, x, ids);
	} else {
		for (uint32_t i = 0; i < n; ++i) be_.activate(rows(out, i, 1), rows(x, wanted[i], 1), {}, {.scale = 1});
	}
	return out;
}

// (n, 2 * dim): norms of rows a and b (n, dim), side by side. a is not in the second half of pairs_, nor b in the
// first.
View PredictionLayer::side_by_side(const View& a, const View& a_norm, const View& b, const View& b_norm) {
	const uint32_t n = a.shape[0];
	const View both = rows(joined_, 0, 2 * n);
	if (n > 1 && is_table()) {
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
void PredictionLayer::join(const LayerRows& r, std::span<const float> of_rows, bool own) {
	const uint32_t n = r.n;
	const View states = rows(pairs_, kRows, n);
	be_.write(*states.buf, states.at, std::as_bytes(of_rows));
	runner_->embed(x_, 0, r.tokens, /*decode=*/true);
	runner_->norm(states, states, (own ? w_ : model_).final_norm);
	const View both = side_by_side(r.x, w_.prediction.embed_norm, states, w_.prediction.state_norm);
	const Proj into[] = {{r.x, w_.prediction.join, {}}};
	be_.matmul(into, both, Epilogue::None, /*decode=*/true);
	runner_->project_in(0, r, /*decode=*/true);
}

// x = join . (states of all layers), or the layer's own state; q, k, v of (norm of the embedding | norm of x).
void PredictionLayer::fuse(const LayerRows& r, std::span<const float> of_rows, bool own) {
	const uint32_t n = r.n;
	const View embedded = rows(pairs_, 0, n);
	const View from = own ? r.x : rows(fused_, 0, n);
	be_.write(*from.buf, from.at, std::as_bytes(of_rows));
	if (!own) {
		if (w_.fusion.norm) be_.rmsnorm(from, from, w_.fusion.norm, cfg_.norm_eps);
		const Proj into[] = {{r.x, w_.fusion.join, {}}};
		be_.matmul(into, from, Epilogue::None, /*decode=*/true);
	}
	be_.embed(embedded, w_.embed, r.tokens.ids);
	const View both = side_by_side(embedded, w_.layers[0].attn_norm.w, r.x, w_.fusion.state_norm);
	if (cfg_.fusion.normed_residual) runner_->norm(r.x, r.x, {w_.fusion.state_norm, {}});
	runner_->project_pairs(0, r, both, /*decode=*/true);
}

void PredictionLayer::read(std::span<const DraftRows> texts) {
	const bool own = texts[0].own;
	const size_t width = own ? cfg_.dim : state_width();
	std::vector<StepRow> step;
	std::vector<uint32_t> positions, tokens, last(texts.size());
	states_.clear();
	// The first rows of all texts, then the second ones, as KvStep takes them.
	for (uint32_t i = 0, before = UINT32_MAX; before != step.size(); ++i) {
		before = uint32_t(step.size());
		for (size_t t = 0; t < texts.size(); ++t) {
			const DraftRows& text = texts[t];
			if (i >= text.tokens.size()) continue;
			KV_ASSERT(text.own == own && text.states.size() == text.tokens.size() * width);
			last[t] = uint32_t(step.size());
			step.push_back({text.cache->all.get(), true, i});
			positions.push_back(text.first + i), tokens.push_back(text.tokens[i]);
			const std::span<const float> state = text.states.subspan(i * width, width);
			states_.insert(states_.end(), state.begin(), state.end());
		}
	}
	const auto n = uint32_t(step.size());
	KvStep kv(be_, scratch_[0], *pool_, step, layers_.n_heads(false));
	place(positions, tokens);
	be_.at_layer(0);
	const LayerRows r = rows_of(0, n);
	kv.before_layer(0);
	if (fused())
		fuse(r, states_, own);
	else
		join(r, states_, own);
	store(0, r, kv);
	kv.attend(0, r.att, r.q, runner_->softmax(0, r));
	runner_->project_out(0, r, /*decode=*/true);
	std::vector<uint32_t> wanted;
	for (size_t t = 0; t < texts.size(); ++t)
		if (texts[t].result) wanted.push_back(last[t]);
	if (!wanted.empty()) {
		const View x = gathered(r.x, wanted);
		runner_->logits(x, /*decode=*/true);
		runner_->read_rows(x, states_);
		top_->read(0, uint32_t(wanted.size()));
	}
	be_.submit();
	be_.wait();
	kv.end();
	uint32_t row = 0;
	for (const DraftRows& text : texts) {
		if (!text.result) continue;
		text.result->token = token(top_->get(row));
		const auto state = states_.begin() + ptrdiff_t(row * size_t(cfg_.dim));
		text.result->state.assign(state, state + cfg_.dim);
		++row;
	}
}

void PredictionLayer::guess(std::span<const DraftGuess> texts) {
	std::vector<FirstGuess> latest;
	for (const DraftGuess& t : texts) latest.push_back(*t.first);
	for (uint32_t i = 0;; ++i) {
		std::vector<DraftRows> rows;
		for (size_t k = 0; k < texts.size(); ++k) {
			const DraftGuess& t = texts[k];
			if (i >= t.most) continue;
			t.out->push_back(latest[k].token);
			if (i + 1 < t.most)
				rows.push_back({t.cache, t.position + i + 1, {&t.out->back(), 1}, latest[k].state, true, &latest[k]});
		}
		if (rows.empty()) return;
		for (size_t at = 0; at < rows.size(); at += kRows)
			read(std::span(rows).subspan(at, std::min<size_t>(kRows, rows.size() - at)));
	}
}

} // namespace kvrun
