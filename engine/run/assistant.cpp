// An assistant on a device.
#include "engine/run/assistant.h"
#include "engine/run/arena.h"
#include "engine/run/engine.h"
#include "engine/run/memory_plan.h"

namespace kvrun {

Assistant::Assistant(Backend& be, const Gguf& g, Config c, const LoadProgress& progress)
    : be_(be), cfg_(std::move(c)), w_(load_weights(g, cfg_, be, progress)), rope_(cfg_, cfg_.max_seq) {}

uint64_t Assistant::activation_bytes(const Config& c) {
	const uint64_t row = 4 * (uint64_t(c.dim) + 2 * c.target_dim + 1 + rope_width(c)); // of prepare()'s arena
	return row + kvrun::activation_bytes(c, 1);
}

void Assistant::prepare(Engine& model) {
	model_ = &model;
	for (const Layer& l : cfg_.layers) places_.push_back(model.cache_layers()[layer_attended(model.config(), l)]);
	runner_ = std::make_unique<LayerRunner>(be_, cfg_, w_, 1);
	top_.emplace(*runner_);
	allocate(be_, memory_, "assistant rows", [&](Arena& a) {
		x_ = a.take(DType::F32, 1, cfg_.dim), both_ = a.take(DType::F32, 2, cfg_.target_dim);
		token_.ids = a.take(DType::U32, 1);
		for (size_t i = 0; i < cfg_.ropes.size(); ++i) position_[i] = a.take(DType::F32, 1, cfg_.ropes[i].dim / 2, 2);
	});
}

Assistant::Round::Round(Assistant& a, Session& s, std::span<const float> state) : a_(a) {
	KV_ASSERT(state.size() == a.cfg_.target_dim);
	for (uint32_t l = 0; l < a.cfg_.n_layers; ++l) {
		const auto [in_window, layer] = a.places_[l];
		if (looks_[in_window]) continue;
		KvScratch& scratch = in_window ? a.model_->window_scratch() : a.model_->scratch();
		KvSequence& seq = in_window ? *s.window_seq() : s.seq();
		looks_[in_window].emplace(a.be_, scratch, seq, layer, a.cfg_.layers[l].n_heads);
	}
	std::vector<float> table;
	for (size_t i = 0; i < a.cfg_.ropes.size(); ++i) {
		table.clear();
		a.rope_[i].append(s.next_position(), table);
		a.be_.write(*a.position_[i].buf, a.position_[i].at, std::as_bytes(std::span(table)));
	}
	const View row = rows(a.both_, 1, 1);
	a.be_.write(*row.buf, row.at, std::as_bytes(state));
	a.model_->runner().norm_states(row, row);
}

uint32_t Assistant::Round::guess(uint32_t token) { return a_.guess(looks_, token); }

uint32_t Assistant::guess(std::optional<KvLook> (&looks)[2], uint32_t token) {
	runner_->write_tokens(token_, {&token, 1});
	model_->runner().embed(both_, 0, token_.ids, /*decode=*/true);
	const Proj in[] = {{x_, w_.assistant.in, {}}};
	be_.matmul(in, shaped(both_, 1, 2 * cfg_.target_dim), Epilogue::None, /*decode=*/true);
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		be_.at_layer(l);
		const LayerRows r = runner_->rows_of(l, x_, token_, position_, 0, 1);
		runner_->project_in(l, r, /*decode=*/true);
		runner_->rotate(l, r, 0, 1, {});
		looks[places_[l].window]->attend(r.att, r.q, runner_->softmax(l, r));
		runner_->project_out(l, r, /*decode=*/true);
	}
	runner_->logits(x_, /*decode=*/true);
	runner_->norm_states(x_, x_);
	const Proj out[] = {{rows(both_, 1, 1), w_.assistant.out, {}}};
	be_.matmul(out, x_, Epilogue::None, /*decode=*/true);
	top_->read();
	be_.submit();
	be_.wait();
	return top_->get();
}

} // namespace kvrun
