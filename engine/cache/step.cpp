// The cache side of one decode step: destinations of new tokens, work lists of attention.
#include "engine/cache/step.h"
#include <algorithm>

namespace kvrun {

KvStep::KvStep(Backend& be, KvScratch& scratch, KvPool& pool, std::span<KvSequence* const> seqs, uint32_t n_heads)
    : be_(be), scratch_(scratch), pool_(pool), seqs_(seqs.begin(), seqs.end()), shape_(seqs[0]->plan().shape),
      n_heads_(n_heads), layers_(shape_.n_layers) {
	try {
		begin_tokens();
		for (KvSequence* s : seqs_) {
			s->fit_sums();
			s->sync();
		}
		scoring_at_ = table_.put(scoring_);
		for (uint32_t l = 0; l < shape_.n_layers; ++l) plan_layer(l);
		// Everything is as large as the step needs before anything is enqueued.
		uint32_t n_parts = 1, n_gather = 0;
		for (const Layer& L : layers_) {
			n_parts = std::max(n_parts, L.read.n_parts());
			n_gather = std::max(n_gather, L.moves.rows());
		}
		parts_ = scratch_.parts_view(be_, n_parts, n_heads, shape_.head_dim);
		if (n_gather) scratch_.gather_rows(be_, shape_, n_gather);
		if (!scoring_.empty()) lse_ = scratch_.lse_view(be_, uint32_t(seqs_.size()), n_heads);
		table_.upload(be_, scratch_.step);
	} catch (...) {
		cancel();
		throw;
	}
}

KvStep::~KvStep() {
	if (!done_) cancel();
}

void KvStep::cancel() noexcept {
	for (KvSequence* s : seqs_) {
		if (!s->cache().in_token()) continue;
		bool whole = !running_ || (!s->cache().flushed() && !s->cache().token_scores());
		try {
			s->copy_pages();
		} catch (...) { whole = false; }
		if (whole)
			s->cache().cancel_token();
		else
			s->reset();
	}
}

void KvStep::begin_tokens() {
	std::vector<std::vector<float>> raw(seqs_.size()); // sums of attention, where a flush is judged by them
	for (size_t i = 0; i < seqs_.size(); ++i)
		if (seqs_[i]->cache().wants_scores())
			seqs_[i]->read_sums(0, shape_.n_layers, raw[i]), judged_.push_back(seqs_[i]);
	if (!judged_.empty()) {
		be_.submit();
		be_.wait();
	}
	for (size_t i = 0; i < seqs_.size(); ++i) {
		KvSequence& s = *seqs_[i];
		const bool judged = s.cache().wants_scores();
		try {
			s.cache().begin_token(judged ? s.sums_of(raw[i]) : std::vector<float>());
		} catch (const Error& e) { throw RowError(i, e); }
		s.copy_pages();
		if (s.cache().token_scores()) scoring_.push_back(uint32_t(i));
	}
}

// Decides for one layer: what leaves, where new tokens go, what is read.
void KvStep::plan_layer(uint32_t l) {
	Layer& L = layers_[l];
	const uint32_t n_kv = shape_.n_kv_heads, n_rows = uint32_t(seqs_.size());
	L.moves.begin(n_kv, /*tail=*/0);
	for (KvSequence* s : seqs_) L.moves.add(*s, l, s->cache().token_moves(l));
	L.moves.end(pool_, table_);

	L.dst_at = table_.take(size_t(n_rows) * n_kv * 2);
	std::vector<SlotCell> scattered;
	std::vector<ReadRows> read;
	std::vector<ScoreRows> score;
	for (uint32_t r = 0; r < n_rows; ++r) {
		const KvSequence& s = *seqs_[r];
		const uint32_t page = s.plan().page[int(Tier::F16)];
		std::vector<SlotCell> cells;
		for (uint32_t h = 0; h < n_kv; ++h) {
			const uint32_t slot = s.cache().token_slot(l, h);
			const uint32_t id = s.cache().pages(l, Tier::F16)[slot / page];
			cells.push_back({r, h, page, s.f16_slot(l, h, id, slot % page)});
		}
		const bool together =
		    std::ranges::all_of(cells, [&](const SlotCell& c) { return c.slot.chunk == cells[0].slot.chunk; });
		L.where.push_back(together ? std::pair{cells[0].slot.chunk, page} : std::pair{kNone, 1u});
		if (!together) scattered.insert(scattered.end(), cells.begin(), cells.end());
		for (uint32_t h = 0; h < n_kv; ++h) {
			const std::span<uint32_t> dst = table_.at(L.dst_at + (size_t(r) * n_kv + h) * 2, 2);
			const uint32_t in_single = (h * n_rows + r) * shape_.head_dim / 2;
			dst[0] = together ? cells[h].slot.k : in_single;
			dst[1] = together ? cells[h].slot.v : in_single;
		}
		const uint32_t piece = decode_piece(pool_.device(), s, l);
		read.push_back({&s, r, 1, piece});
		if (s.cache().token_scores()) score.push_back({&s, uint32_t(score.size()), 1, piece});
	}
	if (!scattered.empty()) L.scatter = lay_rows(pool_, scattered, n_kv, table_);
	L.read.build(l, read, /*extra=*/0, table_);
	L.score.build(l, score, table_);
}

void KvStep::before_layer(uint32_t l) {
	if (!running_)
		for (KvSequence* s : judged_) s->clear_sums();
	running_ = true;
	if (MovePlan& m = layers_[l].moves; !m.empty())
		m.enqueue(be_, scratch_.step, scratch_.gather_rows(be_, shape_, m.rows()));
}

KvDst KvStep::destination(uint32_t l, uint32_t first, uint32_t& n) const {
	const Layer& L = layers_[l];
	const uint32_t n_kv = shape_.n_kv_heads;
	const auto [chunk, page] = L.where[first];
	n = 1;
	while (first + n < seqs_.size() && L.where[first + n] == L.where[first]) ++n;
	const View at = table_view(scratch_.step, L.dst_at + size_t(first) * n_kv * 2, n, n_kv, 2);
	if (chunk == kNone) {
		// offsets are relative to rows of a buffer with exactly as many rows as the step
		KvRows one = scratch_.single_rows(be_, shape_, uint32_t(seqs_.size()));
		return {as_words(one.k), as_words(one.v), at, 1};
	}
	const View pool = pool_.chunk(chunk);
	return {pool, pool, at, page};
}

void KvStep::stored(uint32_t l) {
	const Layer& L = layers_[l];
	if (L.scatter.empty()) return;
	KvRows one = scratch_.single_rows(be_, shape_, uint32_t(seqs_.size()));
	for (View* v : {&one.k, &one.v}) v->shape[1] = uint32_t(seqs_.size()); // as destination() lays them out
	for (const ChunkRows& r : L.scatter)
		be_.kv_store({one.k, one.v, r.first}, r.n, r.dst(scratch_.step, shape_.n_kv_heads));
}

void KvStep::attend(uint32_t l, const View& out, const View& q) {
	const Layer& L = layers_[l];
	const bool scores = !scoring_.empty();
	be_.attend(out, scores ? lse_ : View(), q, L.read.read(pool_, scratch_.step, parts_, shape_.n_kv_heads));
	if (scores && !L.score.empty())
		be_.score_slots(q, lse_,
		                L.score.read(pool_, scratch_.step,
		                             table_view(scratch_.step, scoring_at_, uint32_t(scoring_.size())),
		                             shape_.n_kv_heads));
}

void KvStep::end() {
	for (KvSequence* s : seqs_) s->cache().end_token();
	done_ = true;
}

} // namespace kvrun
