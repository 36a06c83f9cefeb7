// Attention of a prompt's rows: to tokens of the block and older ones, to those that an indexer chooses, to entries of
// blocks, and in the expanded form of latents.
#include "engine/run/prefill.h"
#include "engine/run/session.h"

namespace kvrun {

// Latent attention of the block takes the expanded form where that is fewer multiplications and nothing needs the
// absorbed form's queries. Older tokens are unpacked in front of the block's own: all together are no more than the
// longest block, whose memory `kvrun plan` counts.
void Prefill::choose_form() {
	expanded_ = false;
	Engine& e = session_.engine();
	const KvSequence& seq = session_.seq();
	const uint32_t older = seq.n_tokens(), all = older + n_;
	if (e.latent_form() == LatentForm::Absorbed || !runner_.expands() || hooks_.queries) return;
	if (session_.index() && e.cache_layers().index_shape().chooses(all)) return; // heads are not masked one by one
	if (older && all > block_) return;
	const Latent& latent = latent_layer(runner_.config())->latent;
	if (e.latent_form() == LatentForm::Auto && !expanding_pays(latent, n_, older, seq.plan().ranked())) return;
	if (!memory_->fit_expanded(all)) return;
	expanded_ = true;
}

// Attention of rows of a layer, from row at_ of the block on.
void Prefill::attend(KvPrefill& kv, uint32_t k, const LayerRows& r, bool owns, IndexStep* index) {
	const Softmax of_rows = runner_.softmax(layer_, r);
	const uint32_t first = n_read_ + at_;
	const bool windowed = bool(runner_.config().layers[layer_].window);
	const CacheLayers& layers = session_.engine().cache_layers();
	const IndexShape& shape = layers.index_shape();
	const bool indexed = runner_.config().layers[layer_].indexed && session_.index();
	uint32_t choosing = 0; // the first row that attends to chosen tokens
	while (choosing < r.n && !(indexed && shape.chooses(session_.n_tokens() + at_ + choosing + 1))) ++choosing;
	const uint32_t most = IndexStep::most_rows(shape, session_.n_tokens() + at_ + r.n);
	const View queries = index && choosing < r.n ? runner_.index_queries(layer_, r) : View();
	for (uint32_t i = 0, n; i < r.n; i += n) {
		const PromptImages::Part part = images_->part(first + i, first + r.n, windowed);
		n = part.end - first - i;
		View chosen;
		if (i < choosing) {
			n = std::min(n, choosing - i);
		} else {
			n = std::min(n, most);
			if (layers.shares_index()) chosen = memory_->choices(at_ + i, n);
			const View weights = r.index_weights ? kvrun::rows(r.index_weights, i, n) : View();
			if (index) chosen = index->choose(layers.index(layer_), kvrun::rows(queries, i, n), weights, i, chosen);
		}
		Softmax softmax = of_rows;
		if (softmax.q_rope) softmax.q_rope = kvrun::rows(r.q_rope, i, n);
		kv.attend(k, kvrun::rows(r.att, i, n), kvrun::rows(r.q, i, n), at_ + i, softmax, owns, part.together, chosen);
	}
}

// Of a layer with an indexer: stores the keys of these rows' blocks. Null where the layer has none, or rows attend to
// all tokens.
std::optional<IndexStep> Prefill::store_index(const LayerRows& r) {
	if (!has_indexer(runner_.config(), layer_)) return std::nullopt;
	Engine& e = session_.engine();
	const CacheLayers& layers = e.cache_layers();
	if (layers.index_shape().block > 1) {
		const uint32_t k = layers.index_state(layer_);
		states_step_->piece(k, at_ == 0, r.n);
		runner_.mean_index_keys(layer_, r, states_step_->groups(k));
	}
	if (!session_.index()) return std::nullopt;
	std::vector<IndexRow> rows;
	for (uint32_t i = 0; i < r.n; ++i) rows.push_back({session_.index(), session_.n_tokens() + at_ + i});
	const uint32_t l = layers.index(layer_);
	std::optional<IndexStep> index(std::in_place, e.backend(), e.index_scratch(), e.pool(), std::move(rows), l, 1u);
	for (uint32_t i = 0, n; i < r.n; i += n) {
		n = r.n - i;
		const KvDst dst = index->destination(l, i, n);
		runner_.store_index_keys(layer_, r, i, n, dst);
	}
	return index;
}

// Makes entries of the blocks that end with these rows, and stores them.
void Prefill::store_entries(const LayerRows& r) {
	const CacheLayers::BlockPlace& at = session_.engine().cache_layers().block(layer_);
	KvPrefill& kv = *entries_kv_[at.cache];
	const KvSequence& seq = *session_.entries()[at.cache];
	const uint32_t block = seq.plan().block;
	if (at_ == 0) kv.begin_layer(at.index);
	states_step_->piece(at.state, at_ == 0, r.n);
	runner_.make_entries(layer_, r, states_step_->groups(at.state), /*decode=*/false);
	std::vector<uint32_t> numbers(r.n, kSkip);
	bool any = false;
	for (uint32_t i = 0; i < r.n; ++i)
		if (const uint32_t n = session_.n_tokens() + at_ + i + 1; n % block == 0)
			numbers[i] = n / block - 1 - seq.n_tokens(), any = true;
	if (any) runner_.store_entries(layer_, r, 0, r.n, kv.destination_of(at.index, numbers));
}

// Attention of rows of a layer with blocks: to the window, k of its cache, and to entries.
void Prefill::attend_blocks(KvPrefill& window, uint32_t k, const LayerRows& r, IndexStep* index) {
	const CacheLayers& layers = session_.engine().cache_layers();
	const CacheLayers::BlockPlace& at = layers.block(layer_);
	KvPrefill& kv = *entries_kv_[at.cache];
	const KvSequence& seq = *session_.entries()[at.cache];
	const BlockRows b = runner_.block_rows(layer_, r.n);
	window.attend(k, r.att, r.q, at_, runner_.softmax(layer_, r), true, false, {}, b.lse);
	const IndexShape& shape = layers.index_shape();
	uint32_t choosing = 0; // the first row that attends to chosen entries
	while (choosing < r.n && !(index && shape.chooses(session_.n_tokens() + at_ + choosing + 1))) ++choosing;
	const uint32_t most = IndexStep::most_rows(shape, session_.n_tokens() + at_ + r.n);
	const View queries = choosing < r.n ? runner_.index_queries(layer_, r) : View();
	for (uint32_t i = 0, n; i < r.n; i += n) {
		n = i < choosing ? choosing - i : std::min(r.n - i, most);
		const auto part = [i, n](const View& v) { return kvrun::rows(v, i, n); };
		View chosen;
		if (i >= choosing) chosen = index->choose(layers.index(layer_), part(queries), part(r.index_weights), i);
		std::vector<uint32_t> visible;
		for (uint32_t row = at_ + i; row < at_ + i + n; ++row)
			visible.push_back((session_.n_tokens() + row + 1) / seq.plan().block - seq.n_tokens());
		Softmax softmax = runner_.block_softmax(layer_, r);
		softmax.q_rope = part(softmax.q_rope);
		kv.attend_entries(at.index, part(b.att), part(b.lse_blocks), part(r.q), visible, softmax, chosen);
	}
	runner_.join_blocks(layer_, r);
}

void Prefill::attend_expanded(const LayerRows& r, KvPrefill& kv, const KvRows& own) {
	const View lse = kv.scores_rows(at_, r.n) ? kv.lse(r.n) : View();
	runner_.attend_expanded(layer_, r, memory_->expanded(), unpacked_ + at_, own, lse);
	if (!lse) return;
	runner_.absorb_queries(layer_, r);
	kv.score(session_.engine().cache_layers()[layer_].index, r.q, lse, at_, runner_.softmax(layer_, r));
}

} // namespace kvrun
