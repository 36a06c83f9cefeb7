// An assistant on a device.
#include "engine/run/assistant.h"
#include "engine/run/arena.h"
#include "engine/run/engine.h"
#include "engine/run/memory_plan.h"

namespace kvrun {

Assistant::Assistant(Backend& be, const Gguf& g, Config c, const LoadProgress& progress)
    : be_(be), cfg_(std::move(c)), w_(load_weights(g, cfg_, be, progress)), rope_(cfg_, cfg_.max_seq) {}

uint64_t Assistant::activation_bytes(const Config& c) {
	const uint64_t row = 4 * (uint64_t(c.dim) + 3 * c.target_dim + 1 + rope_width(c)); // of prepare()'s arena
	return kRows * row + kvrun::activation_bytes(c, kRows);
}

void Assistant::prepare(Engine& model) {
	model_ = &model;
	for (const Layer& l : cfg_.layers) places_.push_back(model.cache_layers()[layer_attended(model.config(), l)]);
	runner_ = std::make_unique<LayerRunner>(be_, cfg_, w_, kRows);
	top_.emplace(*runner_);
	allocate(be_, memory_, "assistant rows", [&](Arena& a) {
		x_ = a.take(DType::F32, kRows, cfg_.dim);
		both_ = a.take(DType::F32, 2 * kRows, cfg_.target_dim), states_ = a.take(DType::F32, kRows, cfg_.target_dim);
		tokens_.ids = a.take(DType::U32, kRows);
		for (size_t i = 0; i < cfg_.ropes.size(); ++i)
			positions_[i] = a.take(DType::F32, kRows, cfg_.ropes[i].dim / 2, 2);
	});
}

size_t Assistant::bytes() const {
	size_t n = w_.bytes + memory_.bytes() + (runner_ ? runner_->bytes() : 0);
	for (const auto& of_text : scratch_)
		for (const KvScratch& s : of_text) n += s.bytes();
	return n;
}

Assistant::Round::Round(Assistant& a, std::span<const Text> texts) : a_(a) {
	KV_ASSERT(!texts.empty() && texts.size() <= kRows);
	std::vector<float> tables[kMostRopes], states;
	for (size_t t = 0; t < texts.size(); ++t) {
		Session& s = *texts[t].session;
		KV_ASSERT(texts[t].state.size() == a.cfg_.target_dim);
		Looks& looks = looks_.emplace_back();
		for (uint32_t l = 0; l < a.cfg_.n_layers; ++l) {
			const auto [in_window, layer] = a.places_[l];
			if (looks.of[in_window]) continue;
			KvSequence& seq = in_window ? *s.window_seq() : s.seq();
			looks.of[in_window].emplace(a.be_, a.scratch_[t][in_window], seq, layer, a.cfg_.layers[l].n_heads);
		}
		for (size_t i = 0; i < a.cfg_.ropes.size(); ++i) a.rope_[i].append(s.next_position(), tables[i]);
		states.insert(states.end(), texts[t].state.begin(), texts[t].state.end());
	}
	for (size_t i = 0; i < a.cfg_.ropes.size(); ++i)
		a.be_.write(*a.positions_[i].buf, a.positions_[i].at, std::as_bytes(std::span(tables[i])));
	const View all = rows(a.states_, 0, uint32_t(texts.size()));
	a.be_.write(*all.buf, all.at, std::as_bytes(std::span(states)));
	a.model_->runner().norm_states(all, all);
}

std::vector<uint32_t> Assistant::Round::guess(std::span<const uint32_t> tokens) {
	const auto n = uint32_t(tokens.size());
	KV_ASSERT(n >= 1 && n <= looks_.size());
	Backend& be = a_.be_;
	LayerRunner& runner = *a_.runner_;
	runner.write_tokens(a_.tokens_, tokens);
	for (uint32_t i = 0; i < n; ++i) {
		a_.model_->runner().embed(a_.both_, 2 * i, a_.tokens_.part(i, 1), /*decode=*/true);
		be.activate(rows(a_.both_, 2 * i + 1, 1), rows(a_.states_, i, 1), {}, {.scale = 1});
	}
	const View x = rows(a_.x_, 0, n);
	const Proj in[] = {{x, a_.w_.assistant.in, {}}};
	be.matmul(in, shaped(a_.both_, n, 2 * a_.cfg_.target_dim), Epilogue::None, /*decode=*/true);
	for (uint32_t l = 0; l < a_.cfg_.n_layers; ++l) {
		be.at_layer(l);
		const LayerRows r = runner.rows_of(l, a_.x_, a_.tokens_, a_.positions_, 0, n);
		runner.project_in(l, r, /*decode=*/true);
		runner.rotate(l, r, 0, n, {});
		for (uint32_t i = 0; i < n; ++i)
			looks_[i].of[a_.places_[l].window]->attend(rows(r.att, i, 1), rows(r.q, i, 1), runner.softmax(l, r));
		runner.project_out(l, r, /*decode=*/true);
	}
	runner.logits(x, /*decode=*/true);
	runner.norm_states(x, x);
	const Proj out[] = {{rows(a_.states_, 0, n), a_.w_.assistant.out, {}}};
	be.matmul(out, x, Epilogue::None, /*decode=*/true);
	a_.top_->read(0, n);
	be.submit();
	be.wait();
	std::vector<uint32_t> guesses;
	for (uint32_t i = 0; i < n; ++i) guesses.push_back(a_.top_->get(i));
	return guesses;
}

} // namespace kvrun
