// Decode steps: the next token of several sequences in one step.
#include "engine/run/decode.h"
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include "engine/run/usable.h"
#include <algorithm>
#include <optional>

namespace kvrun {

Decoder::Decoder(LayerRunner& runner, const CacheLayers& layers, KvScratch& scratch, KvScratch& window_scratch,
                 IndexScratch& index_scratch, std::span<KvScratch> entry_scratch, uint32_t most_rows,
                 const NGramTable* grams)
    : runner_(runner), cache_layers_(layers), scratch_(scratch), window_scratch_(window_scratch),
      index_scratch_(index_scratch), entry_scratch_(entry_scratch), most_rows_(most_rows), grams_(grams),
      long_block_(started_blocks(runner.config())[1]),
      lists_(runner.backend().info().lists_candidates), state_layers_{runner.config().n_layers} {
	KV_ASSERT(most_rows >= 1 && most_rows <= LayerRunner::kLogitRows && 2 * most_rows <= runner.most_rows());
	const Config& cfg = runner.config();
	allocate(runner.backend(), memory_, "decode rows", [&](Arena& a) {
		x_ = take_streams(a, cfg, 2 * most_rows);
		tokens_.ids = a.take(DType::U32, 2 * most_rows);
		if (cfg.layer_input_dim) tokens_.inputs = a.take(DType::U32, 2 * most_rows);
		if (cfg.text_input.positions) tokens_.places = a.take(DType::U32, 2 * most_rows);
		for (size_t i = 0; i < cfg.ropes.size(); ++i)
			rope_[i] = a.take(DType::F32, 2 * most_rows, cfg.ropes[i].dim / 2, 2);
		if (cfg.temperature.scale != 0) rope_[kTemperature] = a.take(DType::F32, 2 * most_rows);
		for (const size_t i : block_start_tables(cfg))
			rope_[i] = a.take(DType::F32, 2 * most_rows, cfg.ropes[0].dim / 2, 2);
	});
}

std::span<RowLogits> Decoder::decode(KvPool& pool, std::span<const DecodeRow> step) {
	std::vector<Row> first, rows, ahead;
	std::vector<size_t> of_first; // rows of the step
	for (const DecodeRow& r : step) {
		KvFetch* f = r.seq->fetch();
		rows.push_back({{r.seq, true}, r.window_seq, r.states, r.rope, r.token, r.position, r.top});
		rows.back().index = r.index, rows.back().entries = r.entries;
		if (!r.starts.empty()) rows.back().start = r.starts[0];
		if (f && r.seq->plan().speculates() && !f->ready())
			first.push_back({{r.seq, false}, nullptr, nullptr, r.rope, r.token, r.position}),
			    of_first.push_back(rows.size() - 1);
	}
	for (const DecodeRow& r : step)
		for (uint32_t i = 0; i < r.drafts.size(); ++i) {
			rows.push_back(
			    {{r.seq, true, i + 1}, r.window_seq, r.states, r.rope, r.drafts[i], r.position + i + 1, r.top});
			rows.back().index = r.index;
			if (!r.starts.empty()) rows.back().start = r.starts[i + 1];
		}
	KV_ASSERT(!rows.empty() && rows.size() <= most_rows_);
	if (grams_) read_grams(step);
	try {
		if (!first.empty()) try {
				run(pool, first);
			} catch (const RowError& e) { throw RowError(of_first[e.row], e); }
		for (const DecodeRow& r : step) {
			if (r.seq->fetch() && r.seq->fetch()->ready())
				ahead.push_back({{r.seq, false}, nullptr, nullptr, r.rope, r.seq->fetch()->token(), r.position + 1});
		}
		rows.insert(rows.end(), ahead.begin(), ahead.end());
		run(pool, rows);
	} catch (...) {
		for (const Row& r : first) r.step.seq->fetch()->forget(); // as if the step had not happened
		for (const DecodeRow& r : step) { // where one of a session's caches has lost its tokens, the others are reset
			const auto lost = [&](const auto* s) { return s && s->n_tokens() != r.seq->n_tokens(); };
			const bool lost_entries = std::ranges::any_of(
			    r.entries, [&](const auto& s) { return s->n_tokens() != r.seq->n_tokens() / s->plan().block; });
			if (!lost(r.states) && !lost(r.window_seq) && !lost_entries) continue;
			r.seq->reset();
			if (r.states) r.states->reset();
			if (r.window_seq) r.window_seq->reset();
			for (const auto& s : r.entries) s->reset();
		}
		for (const DecodeRow& r : step)
			if (r.index) r.index->truncate(r.seq->n_tokens());
		throw;
	}
	return row_logits_;
}

// Reads what n-grams of the step's tokens are made of, in the order of the step's rows. No row is speculative: states
// cannot be taken ahead.
void Decoder::read_grams(std::span<const DecodeRow> step) {
	gram_rows_.clear();
	std::vector<uint32_t> text;
	const auto read = [&](const DecodeRow& r, std::span<const uint32_t> drafts) { // of these, or of the row's token
		const size_t reach = std::min<size_t>(r.before.size(), grams_->reach());
		text.assign(r.before.end() - ptrdiff_t(reach), r.before.end());
		text.push_back(r.token);
		text.insert(text.end(), drafts.begin(), drafts.end());
		const std::vector<float> values = grams_->read(text, std::max(uint32_t(drafts.size()), 1u));
		gram_rows_.insert(gram_rows_.end(), values.begin(), values.end());
	};
	for (const DecodeRow& r : step) read(r, {});
	for (const DecodeRow& r : step)
		if (!r.drafts.empty()) read(r, r.drafts);
}

// Submits after the first layer, then after each quarter of the layers, so that the device begins while the host still
// records.
static bool is_handed_over(uint32_t layer, uint32_t n_layers) {
	const uint32_t quarter = std::max(ceil_div(n_layers, 4u), 4u);
	return layer + 1 < n_layers && (layer == 0 || (layer + 1) % quarter == 0);
}

void Decoder::run(KvPool& pool, std::span<const Row> step) {
	const uint32_t n = uint32_t(step.size());
	const uint32_t kept = uint32_t(std::ranges::count_if(step, [](const Row& r) { return r.step.keep; }));
	Backend& be = runner_.backend();
	std::vector<uint32_t> tokens, positions;
	std::vector<StepRow> kv_rows, window_rows, entry_rows[kMostBlockSizes];
	const size_t n_ropes = runner_.config().ropes.size();
	for (std::vector<float>& rope : host_rope_) rope.clear();
	std::optional<IndexStep> index = begin_index(pool, step);
	for (const Row& r : step) {
		tokens.push_back(r.token);
		if (tokens_.places) positions.push_back(r.position);
		kv_rows.push_back(r.step);
		const bool chooses = index && index->chooses(uint32_t(&r - step.data()));
		kv_rows.back().chooses = chooses && r.entries.empty();
		for (size_t i = 0; i < r.entries.size(); ++i) {
			KvSequence& s = *r.entries[i];
			const bool adds = (r.step.seq->n_tokens() + 1) % s.plan().block == 0;
			entry_rows[i].push_back({&s, true, 0, chooses && s.plan().chosen, adds});
		}
		if (r.window_seq) window_rows.push_back({r.window_seq, true, r.step.draft});
		for (size_t i = 0; i < n_ropes; ++i) (*r.rope)[i].append(r.position, host_rope_[i]);
		if (rope_[kTemperature]) r.rope->append_temperature(r.position, 1, host_rope_[kTemperature]);
		if (rope_[kBlockStart]) (*r.rope)[0].append(r.start, host_rope_[kBlockStart]);
		if (rope_[kLongStart])
			(*r.rope)[0].append(r.position - std::min(r.position, long_block_ - 1), host_rope_[kLongStart]);
	}
	std::vector<StateOfRow> states;
	for (const Row& r : step)
		if (r.states) states.push_back({r.states, r.step.draft});
	std::optional<StateStep> recurrent; // either all rows have states or none: see window
	KV_ASSERT(states.empty() || states.size() == step.size());
	if (!states.empty()) recurrent.emplace(be, scratch_.states, states, /*in_place=*/true);
	KvStep main(be, scratch_, pool, kv_rows, cache_layers_.n_heads(false));
	std::optional<KvStep> window; // all rows or none: there are no speculative ones then
	KV_ASSERT(window_rows.empty() || window_rows.size() == kv_rows.size());
	if (!window_rows.empty()) window.emplace(be, window_scratch_, pool, window_rows, cache_layers_.n_heads(true));
	std::optional<KvStep> entries[kMostBlockSizes];
	for (size_t i = 0; i < cache_layers_.blocks().size(); ++i)
		entries[i].emplace(be, entry_scratch_[i], pool, entry_rows[i], cache_layers_.n_heads(false));
	runner_.write_tokens(tokens_, tokens, positions);
	for (size_t i = 0; i < host_rope_.size(); ++i)
		if (rope_[i]) be.write(*rope_[i].buf, rope_[i].at, std::as_bytes(std::span(host_rope_[i])));
	if (recurrent) recurrent->one_row_each();
	const View x = kvrun::rows(x_, 0, n);
	View chosen; // by the last indexer
	runner_.embed(x_, 0, tokens_.part(0, n), /*decode=*/true);
	for (uint32_t l = 0; l < runner_.config().n_layers; ++l) {
		be.at_layer(l);
		if (kept && std::ranges::find(state_layers_, l) != state_layers_.end())
			runner_.read_rows(kvrun::rows(x, 0, kept), entering_[l]);
		LayerRows rows = runner_.rows_of(l, x_, tokens_, rope_, 0, n);
		rows.ngrams = gram_rows_;
		const std::optional<uint32_t> grams = cache_layers_.ngram_state();
		runner_.enter(l, rows, grams ? recurrent->groups(*grams) : std::span<const StateGroup>(), /*decode=*/true);
		const auto [in_window, k] = cache_layers_[l]; // layer k of its cache
		const Layer& layer = runner_.config().layers[l];
		if (layer.recurrent.n_heads) {
			rows.states = recurrent->groups(cache_layers_.state(l));
			runner_.recur(l, rows, /*decode=*/true);
		}
		if (!attends(layer)) {
			runner_.project_out(l, rows, /*decode=*/true);
			if (is_handed_over(l, runner_.config().n_layers)) be.submit();
			continue;
		}
		KvStep& kv = in_window ? *window : main;
		const bool owns = has_own_kv(runner_.config(), l);
		if (owns) kv.before_layer(k);
		runner_.project_in(l, rows, /*decode=*/true);
		if (!owns) runner_.rotate(l, rows, 0, n, {});
		for (uint32_t i = 0; owns && i < n;) { // consecutive rows with pages of one kind in one chunk go together
			uint32_t same = 1;
			const KvDst dst = kv.destination(k, i, same);
			runner_.rotate(l, rows, i, same, dst);
			i += same;
		}
		if (layer.indexed) {
			if (cache_layers_.index_shape().block > 1 && has_indexer(runner_.config(), l))
				runner_.mean_index_keys(l, rows, recurrent->groups(cache_layers_.index_state(l)));
			const bool of_entries = layer.blocks.tokens != 0;
			const CacheLayers::BlockPlace& at = cache_layers_.block(l);
			if (index) choose(*index, l, rows, of_entries ? *entries[at.cache] : kv, of_entries ? at.index : k, chosen);
		}
		if (layer.blocks.tokens) {
			const CacheLayers::BlockPlace& at = cache_layers_.block(l);
			runner_.make_entries(l, rows, recurrent->groups(at.state), /*decode=*/true);
			kv.stored(k);
			attend_blocks(l, rows, kv, *entries[at.cache]);
		} else if (owns)
			kv.stored(k), kv.attend(k, rows.att, rows.q, runner_.softmax(l, rows));
		else
			kv.attend_again(k, rows.att, rows.q, runner_.softmax(l, rows));
		runner_.project_out(l, rows, /*decode=*/true);
		if (is_handed_over(l, runner_.config().n_layers)) be.submit();
	}
	const View out = runner_.merge_streams(x_, 0, n, /*decode=*/true);
	// Rows of guesses first, so that the logits of kept rows are the ones that stay on the device.
	if (n > kept) enqueue_guesses(kvrun::rows(out, kept, n - kept));
	if (kept) {
		runner_.logits(kvrun::rows(out, 0, kept), /*decode=*/true);
		runner_.read_rows(kvrun::rows(out, 0, kept), hidden_);
		enqueue_logits(step.first(kept));
	}
	main.fetch_next();
	be.submit();
	be.wait();
	if (kept) read_logits(step.first(kept));
	main.end();
	if (window) window->end();
	for (std::optional<KvStep>& s : entries)
		if (s) s->end();
	if (recurrent) recurrent->end(1);
	for (const Row& r : step)
		if (r.index) r.index->append(1);
	if (lists_ && n > kept) guessed_.arrived(runner_.config().vocab);
	for (uint32_t i = kept; i < n; ++i) step[i].step.seq->fetch()->speculate(guess(i - kept));
}

// Makes room for keys of the rows' tokens; null without an indexer.
std::optional<IndexStep> Decoder::begin_index(KvPool& pool, std::span<const Row> step) {
	std::vector<IndexRow> rows;
	bool any = false;
	for (const Row& r : step) {
		any |= r.index != nullptr;
		rows.push_back({r.index, r.index ? r.index->n_tokens() + r.step.draft : 0});
	}
	if (!any) return std::nullopt;
	for (uint32_t i = 0; i < step.size(); ++i)
		if (step[i].index) try {
				step[i].index->make_room(step[i].step.draft + 1);
			} catch (const Error& e) { throw RowError(i, e); }
	return std::optional<IndexStep>(std::in_place, runner_.backend(), index_scratch_, pool, std::move(rows), 0u,
	                                cache_layers_.index_shape().n_layers);
}

// Stores keys of the rows' blocks, and chooses what rows attend to; without an indexer of its own, the layer takes what
// is chosen.
void Decoder::choose(IndexStep& index, uint32_t l, const LayerRows& rows, KvStep& kv, uint32_t kv_layer, View& chosen) {
	const uint32_t k = cache_layers_.index(l);
	bool any = false;
	for (uint32_t i = 0; i < rows.n; ++i) any |= index.chooses(i);
	if (has_indexer(runner_.config(), l)) {
		const View q = runner_.index_queries(l, rows);
		for (uint32_t i = 0, n; i < rows.n; i += n) {
			n = rows.n - i;
			const KvDst dst = index.destination(k, i, n);
			runner_.store_index_keys(l, rows, i, n, dst);
		}
		if (any) chosen = index.choose(k, q, rows.index_weights, 0);
	}
	if (any) kv.choose(kv_layer, chosen);
}

// Stores entries of blocks that end with the rows, and attends to the window and to entries.
void Decoder::attend_blocks(uint32_t l, const LayerRows& rows, KvStep& window, KvStep& entries) {
	const uint32_t k = cache_layers_.block(l).index;
	entries.before_layer(k);
	for (uint32_t i = 0; i < rows.n;) {
		uint32_t same = 1;
		const KvDst dst = entries.destination(k, i, same);
		runner_.store_entries(l, rows, i, same, dst);
		i += same;
	}
	entries.stored(k);
	const BlockRows b = runner_.block_rows(l, rows.n);
	window.attend(cache_layers_[l].index, rows.att, rows.q, runner_.softmax(l, rows), b.lse);
	entries.attend(k, b.att, rows.q, runner_.block_softmax(l, rows), b.lse_blocks);
	runner_.join_blocks(l, rows);
}

std::span<const float> Decoder::state(uint32_t i) {
	const size_t dim = runner_.config().dim;
	const auto row = [&](uint32_t l) {
		return std::span(l < runner_.config().n_layers ? entering_.at(l) : hidden_).subspan(i * dim, dim);
	};
	if (state_layers_.size() == 1) return row(state_layers_[0]);
	state_.clear();
	for (const uint32_t l : state_layers_) {
		const std::span<const float> one = row(l);
		state_.insert(state_.end(), one.begin(), one.end());
	}
	return state_;
}

void Decoder::enqueue_guesses(const View& x) {
	const uint32_t n = x.shape[0];
	runner_.logits(x, /*decode=*/true);
	if (lists_) return runner_.read_candidates(0, n, 1, guessed_);
	const size_t size = size_t(n) * runner_.config().vocab;
	if (guesses_.size() < size) guesses_.resize(size);
	runner_.read_logits(0, n, std::span(guesses_).first(size));
}

// The most likely token. If the device could not name it, any token will do, because it only decides what is fetched.
uint32_t Decoder::guess(uint32_t i) {
	if (lists_) {
		const std::span<const Logit> top = guessed_.of(i, 1);
		return top.empty() ? 0 : top[0].id;
	}
	const size_t vocab = runner_.config().vocab;
	likeliest_.scan(std::span(guesses_).subspan(i * vocab, vocab));
	return uint32_t(likeliest_.first_max());
}

void Decoder::enqueue_logits(std::span<const Row> kept) {
	const uint32_t n = uint32_t(kept.size());
	const size_t vocab = runner_.config().vocab;
	const size_t blocks = ceil_div(vocab, size_t(KV_LOGIT_BLOCK)); // at least as many blocks as entries are wanted
	const auto whole = [&](const Row& r) { return !lists_ || r.top == 0 || r.top > blocks; };
	if (logits_.size() < n * vocab) logits_.resize(n * vocab); // never shrunk: growing again would write zeros
	for (uint32_t i = 0; i < n;) {                             // consecutive rows are read together
		uint32_t end = i;
		while (end < n && whole(kept[end])) ++end;
		if (end > i) runner_.read_logits(i, end - i, std::span(logits_).subspan(i * vocab, (end - i) * vocab));
		i = std::max(end, i + 1);
	}
	uint32_t k = 0;
	for (const Row& r : kept)
		if (!whole(r)) k = std::max(k, r.top);
	if (k) runner_.read_candidates(0, n, k, candidates_);
	row_logits_.assign(n, {});
	for (uint32_t i = 0; i < n; ++i)
		if (whole(kept[i])) row_logits_[i].all = std::span(logits_).subspan(i * vocab, vocab);
}

// The device may find too many candidates, or none if logits are not finite. Then the whole row is read, with one more
// wait.
void Decoder::read_logits(std::span<const Row> kept) {
	const size_t vocab = runner_.config().vocab;
	bool more = false, listed = false;
	for (const RowLogits& r : row_logits_) listed |= r.all.empty();
	if (!listed) return;
	candidates_.arrived(runner_.config().vocab);
	for (uint32_t i = 0; i < kept.size(); ++i) {
		RowLogits& r = row_logits_[i];
		if (!r.all.empty()) continue;
		r.top = candidates_.of(i, kept[i].top);
		if (!r.top.empty()) continue;
		r.all = std::span(logits_).subspan(i * vocab, vocab);
		runner_.read_logits(i, 1, std::span(logits_).subspan(i * vocab, vocab));
		more = true;
	}
	if (!more) return;
	runner_.backend().submit();
	runner_.backend().wait();
}

std::span<const float> Decoder::whole_row(uint32_t i) {
	RowLogits& r = row_logits_[i];
	if (!r.all.empty()) return r.all;
	const size_t vocab = runner_.config().vocab;
	r.all = std::span(logits_).subspan(i * vocab, vocab);
	runner_.read_logits(i, 1, std::span(logits_).subspan(i * vocab, vocab));
	runner_.backend().submit();
	runner_.backend().wait();
	return r.all;
}

// A list from the device has no NaN.
bool Decoder::usable(uint32_t i) const {
	const size_t dim = runner_.config().dim;
	return has_norm(std::span(hidden_).subspan(i * dim, dim)) &&
	       (row_logits_[i].all.empty() || has_choice(row_logits_[i].all));
}

} // namespace kvrun
