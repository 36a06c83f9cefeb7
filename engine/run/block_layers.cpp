// DFlash and DSpark layers: guesses of a block of tokens at once.
#include "engine/run/block_layers.h"
#include <algorithm>

namespace kvrun {

BlockLayers::BlockLayers(Backend& be, const Gguf& g, Config cfg, const Weights& model, const LoadProgress& progress)
    : DraftLayers(be, g, cfg, model, cfg.fusion.layers, progress) {}

uint64_t BlockLayers::activation_bytes(const Config& c) {
	return kRows * (row_bytes(c) + 4 * c.fusion.layers.size() * c.target_dim) + 4 * uint64_t(c.block.rank);
}

void BlockLayers::lay(Arena& a) {
	fused_ = a.take(DType::F32, kRows, state_width());
	if (cfg_.block.rank) before_ = a.take(DType::F32, 1, cfg_.block.rank);
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

void BlockLayers::begin(Steps& s, DraftCache& c, uint32_t n, bool causal) {
	const auto begin_one = [&](std::optional<KvStep>& kv, KvSequence& seq, bool window) {
		std::vector<StepRow> rows;
		for (uint32_t i = 0; i < n; ++i) rows.push_back({&seq, true, i});
		kv.emplace(be_, scratch_[window], *pool_, rows, layers_.n_heads(window), causal);
	};
	begin_one(s.all, *c.all, false);
	if (c.window) begin_one(s.window, *c.window, true);
}

void BlockLayers::read(DraftCache& c, const DraftRows& in, bool) {
	const auto n = uint32_t(in.tokens.size());
	KV_ASSERT(!in.own && in.states.size() == size_t(n) * state_width());
	Steps steps;
	begin(steps, c, n, /*causal=*/true);
	place(in.first, in.tokens);
	const View states = rows(fused_, 0, n), g = rows(x_, 0, n);
	be_.write(*states.buf, states.at, std::as_bytes(in.states));
	const Proj into[] = {{g, w_.fusion.join, {}}};
	be_.matmul(into, states, Epilogue::None, /*decode=*/true);
	runner_->norm(g, g, {w_.fusion.norm, {}});
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		be_.at_layer(l);
		KvStep& kv = steps.of(layers_[l]);
		kv.before_layer(layers_[l].index);
		const LayerRows r = rows_of(l, n);
		const Proj kv_of_text[] = {{r.k, w_.layers[l].wk, {}}, {r.v, w_.layers[l].wv, {}}};
		be_.matmul(kv_of_text, g, Epilogue::None, /*decode=*/true);
		store(l, r, kv);
	}
	be_.submit();
	be_.wait();
	steps.end();
}

void BlockLayers::guess(DraftCache& c, uint32_t position, uint32_t next, uint32_t most, std::vector<uint32_t>& out) {
	const DraftBlock& b = cfg_.block;
	const uint32_t first = b.from_anchor ? 0 : 1; // row whose output is the first guess
	const uint32_t n = std::min({most, b.size - first, kRows - first}), n_rows = n + first;
	std::vector<uint32_t> tokens(n_rows, b.mask);
	tokens[0] = next;
	Steps steps;
	begin(steps, c, n_rows, b.causal);
	place(position + 1, tokens);
	runner_->embed(x_, 0, rows(tokens_.ids, 0, n_rows), /*decode=*/true);
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		be_.at_layer(l);
		KvStep& kv = steps.of(layers_[l]);
		const uint32_t k = layers_[l].index;
		kv.before_layer(k);
		const LayerRows r = rows_of(l, n_rows);
		runner_->project_in(l, r, /*decode=*/true);
		store(l, r, kv);
		kv.attend(k, r.att, r.q, runner_->softmax(l, r));
		runner_->project_out(l, r, /*decode=*/true);
	}
	runner_->logits(rows(x_, first, n), /*decode=*/true);
	if (!b.rank) top_->read(0, n);
	be_.submit();
	be_.wait();
	steps.end();
	if (b.rank) return chain(n, next, out);
	for (uint32_t i = 0; i < n; ++i) out.push_back(token(top_->get(i)));
}

// Logits of a guess depend on the one before.
void BlockLayers::chain(uint32_t n, uint32_t next, std::vector<uint32_t>& out) {
	for (uint32_t i = 0; i < n; ++i) {
		runner_->write_tokens(tokens_, {&next, 1});
		be_.embed(before_, w_.fusion.markov_in, rows(tokens_.ids, 0, 1));
		runner_->add_to_logits(i, w_.fusion.markov_out, before_, /*decode=*/true);
		top_->read(i);
		be_.submit();
		be_.wait();
		next = token(top_->get());
		out.push_back(next);
	}
}

} // namespace kvrun
