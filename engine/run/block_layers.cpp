// DFlash and DSpark layers: guesses of a block of tokens at once.
#include "engine/run/block_layers.h"
#include <algorithm>

namespace kvrun {

BlockLayers::BlockLayers(Backend& be, const Gguf& g, Config cfg, const Weights& model, const LoadProgress& progress)
    : DraftLayers(be, g, cfg, model, cfg.fusion.layers, progress) {}

uint64_t BlockLayers::activation_bytes(const Config& c) {
	return kRows * (row_bytes(c) + 4 * (c.fusion.layers.size() * c.target_dim + c.block.rank));
}

void BlockLayers::lay(Arena& a) {
	fused_ = a.take(DType::F32, kRows, state_width());
	if (cfg_.block.rank) before_ = a.take(DType::F32, kRows, cfg_.block.rank);
}

// A text has no queries, but RoPE and storing take them: they are finite.
void BlockLayers::fill() {
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		const View q = rows_of(l, kRows).q;
		const std::vector<float> zeros(q.elements());
		be_.write(*q.buf, q.at, std::as_bytes(std::span(zeros)));
	}
}

void BlockLayers::Steps::end() {
	all->end();
	if (window) window->end();
}

void BlockLayers::begin(Steps& s, std::span<const Row> rows, bool causal) {
	const auto begin_one = [&](std::optional<KvStep>& kv, bool window) {
		std::vector<StepRow> step;
		for (const Row& r : rows) step.push_back({(window ? r.cache->window : r.cache->all).get(), true, r.i});
		kv.emplace(be_, scratch_[window], *pool_, step, layers_.n_heads(window), causal);
	};
	begin_one(s.all, false);
	if (layers_.both_kinds()) begin_one(s.window, true);
}

void BlockLayers::read(std::span<const DraftRows> texts) {
	std::vector<Row> step;
	std::vector<uint32_t> positions, tokens;
	std::vector<float> states;
	for (uint32_t i = 0, before = UINT32_MAX; before != step.size(); ++i) {
		before = uint32_t(step.size());
		for (const DraftRows& t : texts) {
			if (i >= t.tokens.size()) continue;
			KV_ASSERT(!t.own && t.states.size() == t.tokens.size() * state_width());
			step.push_back({t.cache, i});
			positions.push_back(t.first + i), tokens.push_back(t.tokens[i]);
			const std::span<const float> state = t.states.subspan(size_t(i) * state_width(), state_width());
			states.insert(states.end(), state.begin(), state.end());
		}
	}
	const auto n = uint32_t(step.size());
	Steps steps;
	begin(steps, step, /*causal=*/true);
	place(positions, tokens);
	const View from = rows(fused_, 0, n), g = rows(x_, 0, n);
	be_.write(*from.buf, from.at, std::as_bytes(std::span(states)));
	const Proj into[] = {{g, w_.fusion.join, {}}};
	be_.matmul(into, from, Epilogue::None, /*decode=*/true);
	runner_->norm(g, g, {w_.fusion.norm, {}});
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		be_.at_layer(l);
		KvStep& kv = steps.of(layers_[l]);
		kv.before_layer(layers_[l].index);
		const LayerRows r = rows_of(l, n);
		runner_->project_kv(l, r, g, /*decode=*/true);
		store(l, r, kv);
	}
	be_.submit();
	be_.wait();
	steps.end();
}

// Texts with blocks of one length go together, as many as a step takes.
void BlockLayers::guess(std::span<const DraftGuess> texts) {
	const uint32_t first = cfg_.block.from_anchor ? 0 : 1; // row whose output is the first guess
	const auto length = [&](const DraftGuess& t) { return std::min({t.most, cfg_.block.size - first, kRows - first}); };
	std::vector<DraftGuess> sorted(texts.begin(), texts.end());
	std::ranges::stable_sort(sorted, {}, length);
	for (size_t at = 0; at < sorted.size();) {
		const uint32_t n = length(sorted[at]);
		size_t end = at;
		while (end < sorted.size() && length(sorted[end]) == n && (end - at + 1) * (n + first) <= kRows) ++end;
		guess_together(std::span(sorted).subspan(at, end - at), n);
		at = end;
	}
}

// Row i * texts + t is the i-th one of text t.
void BlockLayers::guess_together(std::span<const DraftGuess> texts, uint32_t n) {
	const DraftBlock& b = cfg_.block;
	const auto n_texts = uint32_t(texts.size());
	const uint32_t first = b.from_anchor ? 0 : n_texts, n_rows = first + n * n_texts;
	std::vector<Row> step;
	std::vector<uint32_t> positions, tokens;
	for (uint32_t i = 0; step.size() < n_rows; ++i)
		for (const DraftGuess& t : texts) {
			step.push_back({t.cache, i});
			positions.push_back(t.position + 1 + i), tokens.push_back(i ? b.mask : t.next);
		}
	Steps steps;
	begin(steps, step, b.causal);
	place(positions, tokens);
	runner_->embed(x_, 0, tokens_.part(0, n_rows), /*decode=*/true);
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		be_.at_layer(l);
		KvStep& kv = steps.of(layers_[l]);
		const uint32_t k = layers_[l].index;
		kv.before_layer(k);
		const LayerRows r = rows_of(l, n_rows);
		runner_->project_in(l, r, /*decode=*/true);
		store(l, r, kv);
		kv.attend(k, r.att, r.q, runner_->softmax(l, r));
		if (b.value_scale != 1) be_.activate(r.att, r.att, {}, {.scale = b.value_scale});
		runner_->project_out(l, r, /*decode=*/true);
	}
	runner_->logits(rows(x_, first, n * n_texts), /*decode=*/true);
	if (!b.rank) top_->read(0, n * n_texts);
	be_.submit();
	be_.wait();
	steps.end();
	if (b.rank) return chain(texts, n);
	for (uint32_t i = 0; i < n; ++i)
		for (uint32_t t = 0; t < n_texts; ++t) texts[t].out->push_back(token(top_->get(i * n_texts + t)));
}

// Logits of a guess depend on the one before.
void BlockLayers::chain(std::span<const DraftGuess> texts, uint32_t n) {
	const auto n_texts = uint32_t(texts.size());
	std::vector<uint32_t> before;
	for (const DraftGuess& t : texts) before.push_back(t.next);
	const View x = rows(before_, 0, n_texts);
	for (uint32_t i = 0; i < n; ++i) {
		runner_->write_tokens(tokens_, before);
		be_.embed(x, w_.fusion.markov_in, rows(tokens_.ids, 0, n_texts));
		runner_->add_to_logits(i * n_texts, w_.fusion.markov_out, x, /*decode=*/true);
		top_->read(i * n_texts, n_texts);
		be_.submit();
		be_.wait();
		for (uint32_t t = 0; t < n_texts; ++t) {
			before[t] = token(top_->get(t));
			texts[t].out->push_back(before[t]);
		}
	}
}

} // namespace kvrun
