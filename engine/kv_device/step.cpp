// The cache side of one decode step: destinations of new tokens, work lists of attention.
#include "engine/kv_device/step.h"
#include <algorithm>
#include <array>
#include <chrono>

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

} // namespace

KvStep::KvStep(Backend& be, KvScratch& scratch, KvPool& pool, std::span<const StepRow> rows, uint32_t n_heads,
               bool causal)
    : be_(be), scratch_(scratch), pool_(pool), rows_(rows.begin(), rows.end()), masks_(pool), choices_(pool),
      shape_(rows[0].seq->plan().shape), n_heads_(n_heads), layers_(shape_.n_layers) {
	for (const StepRow& r : rows_) {
		if (!r.adds) continue;
		if (r.draft) {
			const size_t of = size_t(std::ranges::find(seqs_, r.seq) - seqs_.begin());
			KV_ASSERT(r.keep && of < seqs_.size() && r.draft == n_tokens_[of]);
			++n_tokens_[of];
		} else if (r.keep) {
			seqs_.push_back(r.seq), n_tokens_.push_back(1), row_of_.push_back(uint32_t(&r - rows_.data()));
		}
		if (r.seq->fetch() && std::ranges::find(fetching_, r.seq) == fetching_.end()) fetching_.push_back(r.seq);
	}
	try {
		begin_tokens();
		for (KvSequence* s : seqs_) s->fit_sums();
		for (const StepRow& r : rows_)
			if (!r.draft) r.seq->sync();
		for (size_t i = 0; i < seqs_.size(); ++i) masks_.add(be_, *seqs_[i], n_tokens_[i], causal);
		for (uint32_t r = 0; r < rows_.size(); ++r)
			if (rows_[r].chooses) choices_.add(*rows_[r].seq, r);
		scoring_at_ = table_.put(scoring_);
		if (!fetching_.empty()) plan_fetch();
		for (uint32_t l = 0; l < shape_.n_layers; ++l) plan_layer(l);
		// All buffers get the size that the step needs before anything is enqueued.
		uint32_t n_parts = 1, n_gather = 0;
		for (const Layer& L : layers_) {
			n_parts = std::max({n_parts, L.read.n_parts(), L.fetched_read.n_parts()});
			n_gather = std::max(n_gather, L.moves.rows());
		}
		parts_ = scratch_.parts_view(be_, n_parts, n_heads, shape_.head_dim);
		if (n_gather) scratch_.gather_rows(be_, shape_, n_gather);
		if (!scoring_.empty() || !choosers_.empty()) lse_ = scratch_.lse_view(be_, uint32_t(rows_.size()), n_heads);
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
	if (running_ || !judged_.empty()) try { // pending reads write to members of this object
			be_.submit();
			be_.wait();
		} catch (...) {} // the device is lost: no work is running
	for (KvSequence* s : std::span(fetching_).first(n_prepared_)) s->fetch()->step_failed(running_);
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
	sums_.resize(seqs_.size());
	judged_.reserve(seqs_.size());
	for (size_t i = 0; i < seqs_.size(); ++i)
		if (seqs_[i]->cache().wants_scores())
			judged_.push_back(seqs_[i]), seqs_[i]->read_sums(0, shape_.n_layers, sums_[i]);
	if (!judged_.empty()) {
		be_.submit();
		be_.wait();
	}
	for (size_t i = 0; i < seqs_.size(); ++i) {
		KvSequence& s = *seqs_[i];
		const bool judged = s.cache().wants_scores();
		try {
			if (s.n_tokens() == 0) s.begin_balance(0);
			if (s.fetch() && s.cache().flush_due()) s.fetch()->reserve_host(s.cache(), s.n_tokens() + 1);
			s.cache().begin_token(judged ? s.sums_of(sums_[i]) : std::vector<float>(), n_tokens_[i]);
		} catch (const Error& e) { throw RowError(row_of_[i], e); }
		s.copy_pages();
		if (s.cache().token_scores()) scoring_.push_back(uint32_t(i));
	}
}

// Plans one layer: which tokens leave, where new tokens go, which pages are read.
void KvStep::plan_layer(uint32_t l) {
	Layer& L = layers_[l];
	const uint32_t n_kv = shape_.n_kv_heads, n_rows = uint32_t(rows_.size());
	L.moves.begin(n_kv, /*tail=*/0);
	for (KvSequence* s : seqs_) L.moves.add(*s, l, s->cache().token_moves(l));
	L.moves.end(pool_, table_);
	for (size_t i = 0; i < seqs_.size(); ++i)
		if (KvFetch* f = seqs_[i]->fetch()) f->place_packed(*seqs_[i], l, L.moves.leaving(i), table_);

	L.dst_at = table_.take(size_t(n_rows) * n_kv * 2);
	std::vector<SlotCell> scattered;
	std::vector<ReadRows> read, fetched_read;
	std::vector<ScoreRows> score;
	for (uint32_t r = 0; r < n_rows; ++r) {
		const KvSequence& s = *rows_[r].seq;
		const bool keep = rows_[r].keep;
		const uint32_t page = s.plan().page[int(Tier::F16)];
		std::vector<SlotCell> cells;
		const bool adds = rows_[r].adds;
		for (uint32_t h = 0; h < n_kv && adds; ++h) {
			const uint32_t slot = keep ? s.cache().token_slot(l, h, rows_[r].draft) : 0;
			cells.push_back({r, h, page,
			                 keep ? s.f16_slot(l, h, s.cache().pages(l, Tier::F16)[slot / page], slot % page)
			                      : s.fetch()->speculative_slot(s, l, h)});
		}
		const bool together =
		    adds && std::ranges::all_of(cells, [&](const SlotCell& c) { return c.slot.chunk == cells[0].slot.chunk; });
		L.where.push_back(together ? std::pair{cells[0].slot.chunk, page} : std::pair{kNone, 1u});
		if (!together) scattered.insert(scattered.end(), cells.begin(), cells.end());
		for (uint32_t h = 0; h < n_kv; ++h) {
			const std::span<uint32_t> dst = table_.at(L.dst_at + (size_t(r) * n_kv + h) * 2, 2);
			const uint32_t in_single = h * n_rows + r; // row
			dst[0] = !adds ? kSkip : together ? cells[h].slot.k : in_single * (shape_.head_dim / 2);
			dst[1] = !adds ? kSkip : together ? cells[h].slot.v : in_single * (shape_.v_dim() / 2);
		}
		const RowMask* const mask = keep ? masks_.of(s, rows_[r].draft) : nullptr;
		const uint32_t piece = decode_piece(pool_.device(), s, l, mask);
		const bool ahead = s.plan().speculates(); // its tokens were fetched before the step
		const RowChoice* const choice = l < s.plan().chosen_from ? nullptr : choices_.of(r);
		read.push_back({&s, r, 1, piece,
		                !keep   ? Fetched::Speculative
		                : ahead ? Fetched::Tokens
		                        : Fetched::None,
		                mask, choice});
		fetched_read.push_back({&s, r, 1, piece,
		                        !keep       ? Fetched::Speculative
		                        : s.fetch() ? Fetched::Tokens
		                                    : Fetched::None});
		if (keep && adds && !rows_[r].draft && s.cache().token_scores())
			score.push_back({&s, uint32_t(score.size()), 1, piece, mask, choice});
	}
	if (!scattered.empty()) L.scatter = lay_rows(pool_, scattered, n_kv, table_);
	L.choices_at = choices_.plan(l, table_), L.n_choices = choices_.n_work();
	L.read.build(l, read, /*extra=*/0, table_);
	L.score.build(l, score, table_);
	if (fetching_.empty()) return;
	if (syncs()) L.fetched_read.build(l, fetched_read, /*extra=*/0, table_);
	std::vector<WeighRows> weigh;
	for (const Chooser& c : choosers_) {
		const bool masked = c.seq->plan().speculates() && c.seq->fetch()->n_fetched() > 0;
		weigh.push_back({c.seq, c.row, decode_piece(pool_.device(), *c.seq, l), c.weights, masked});
	}
	L.weigh.build(l, weigh, table_);
	L.shares_at = table_.take(sharers_.size() * SHARE_WORDS);
	const std::span<uint32_t> shares = table_.at(L.shares_at, sharers_.size() * SHARE_WORDS);
	for (size_t i = 0; i < sharers_.size(); ++i) {
		const ShareWork w = (syncs() ? L.fetched_read : L.read).share_of(sharers_[i]);
		std::ranges::copy(std::array{w.first, w.n, w.inside, 0u}, shares.begin() + ptrdiff_t(i * SHARE_WORDS));
	}
}

void KvStep::before_layer(uint32_t l) {
	if (!running_)
		for (KvSequence* s : judged_) s->clear_sums();
	if (!running_ && n_edits_) be_.scatter(pool_.tables().view(), table_view(scratch_.step, edits_at_, n_edits_, 2));
	running_ = true;
	if (MovePlan& m = layers_[l].moves; !m.empty()) {
		const KvRows gathered = scratch_.gather_rows(be_, shape_, m.rows());
		m.enqueue(be_, scratch_.step, gathered);
		for (size_t i = 0; i < seqs_.size(); ++i)
			if (KvFetch* f = seqs_[i]->fetch()) {
				f->keep(l, gathered, m.leaving(i));
				f->store_packed(l, gathered, scratch_.step);
			}
	}
	for (KvSequence* s : fetching_) s->fetch()->enqueue(l);
}

KvDst KvStep::destination(uint32_t l, uint32_t first, uint32_t& n) const {
	const Layer& L = layers_[l];
	const uint32_t n_kv = shape_.n_kv_heads;
	const auto [chunk, page] = L.where[first];
	n = 1;
	while (first + n < rows_.size() && L.where[first + n] == L.where[first]) ++n;
	const View at = table_view(scratch_.step, L.dst_at + size_t(first) * n_kv * 2, n, n_kv, 2);
	if (chunk == kNone) {
		// offsets are relative to rows of a buffer with exactly as many rows as the step
		KvRows one = scratch_.single_rows(be_, shape_, uint32_t(rows_.size()));
		return {as_words(one.k), as_words(one.v), at, 1};
	}
	const View pool = pool_.chunk(chunk);
	return {pool, pool, at, page};
}

void KvStep::stored(uint32_t l) {
	const Layer& L = layers_[l];
	if (L.scatter.empty()) return;
	KvRows one = scratch_.single_rows(be_, shape_, uint32_t(rows_.size()));
	for (View* v : {&one.k, &one.v}) v->shape[1] = uint32_t(rows_.size()); // same layout as destination()
	for (const ChunkRows& r : L.scatter)
		be_.kv_store({one.k, one.v, r.first}, r.n, r.dst(scratch_.step, shape_.n_kv_heads));
}

// Plans which rows choose what to fetch, where weights and picks lie, and the mask changes. A step has only one fetch
// mode, so a mode that waits for its choice inside a layer does not delay the others.
void KvStep::plan_fetch() {
	std::vector<uint32_t> edits, top;
	uint32_t at = 0;
	const uint32_t n_kv = shape_.n_kv_heads;
	for (uint32_t r = 0; r < rows_.size(); ++r) {
		KvFetch* f = rows_[r].seq->fetch();
		if (!f) continue;
		if (rows_[r].keep) sharers_.push_back(r);
		if (rows_[r].keep == rows_[r].seq->plan().policy.fetch_sync) choosers_.push_back({r, rows_[r].seq, 0, 0});
	}
	for (KvSequence* s : fetching_) {
		++n_prepared_;
		try {
			s->fetch()->prepare(*s, s->plan().policy.fetch_sync, edits);
		} catch (const Error& e) {
			const auto row = std::ranges::find(rows_, s, &StepRow::seq);
			throw RowError(size_t(row - rows_.begin()), e);
		}
	}
	for (Chooser& c : choosers_) c.weights = at, at += c.seq->fetch()->n_weights() * n_kv;
	constexpr uint32_t kApart = 64; // words: device alignment of bindings is at most 256 bytes
	picks_at_ = at = align_up(at, kApart);
	for (Chooser& c : choosers_) {
		const KvFetch& f = *c.seq->fetch();
		c.picks = at - picks_at_;
		for (uint32_t h = 0; h < n_kv && f.n_picks(); ++h, at += f.n_picks(), ++n_top_)
			top.insert(top.end(), {c.weights + h * f.n_weights(), f.n_weights(), at - picks_at_, f.n_picks()});
	}
	n_picks_ = at - picks_at_;
	shares_at_ = at = align_up(at, kApart);
	scratch_.fit_fetch(be_, size_t(at) + sharers_.size() * n_heads_);
	top_at_ = table_.put(top);
	edits_at_ = table_.put(edits);
	n_edits_ = uint32_t(edits.size() / 2);
}

void KvStep::choose(uint32_t l, const View& bits) {
	choices_.enqueue(be_, bits, scratch_.step, layers_[l].choices_at, layers_[l].n_choices);
}

// Weighs packed tokens by the choosing rows, and reads their picks.
void KvStep::weigh(uint32_t l, const View& q, const Softmax& softmax) {
	Layer& L = layers_[l];
	L.picks.assign(n_picks_, kNone);
	if (!n_picks_) return;
	const View weight = view(scratch_.fetch, 0, DType::F32, picks_at_);
	const View picks = table_view(scratch_.fetch, picks_at_, n_picks_);
	WeighArgs args = L.weigh.read(pool_, scratch_.step, weight, shape_.n_kv_heads);
	args.softcap = softmax.softcap, args.q_rope = softmax.q_rope;
	be_.weigh(q, lse_, args);
	be_.top_k(picks, weight, table_view(scratch_.step, top_at_, n_top_, TOP_WORDS));
	be_.read(scratch_.fetch, picks.at, std::as_writable_bytes(std::span(L.picks)));
}

void KvStep::take_picks(uint32_t l) {
	for (const Chooser& c : choosers_) {
		KvFetch& f = *c.seq->fetch();
		f.choose(*c.seq, l, std::span(layers_[l].picks).subspan(c.picks, size_t(f.n_picks()) * shape_.n_kv_heads));
	}
}

void KvStep::attend_to_fetched(uint32_t l, const View& out, const View& q, const Softmax& softmax) {
	const Layer& L = layers_[l];
	be_.submit();
	be_.wait();
	const auto start = Clock::now();
	take_picks(l);
	std::vector<uint32_t> edits;
	for (const Chooser& c : choosers_) {
		c.seq->fetch()->mask_layer(*c.seq, l, edits);
		c.seq->fetch()->enqueue(l);
	}
	if (!edits.empty()) {
		StepTable table;
		const size_t at = table.put(edits);
		table.upload(be_, edits_);
		be_.scatter(pool_.tables().view(), table_view(edits_, at, uint32_t(edits.size() / 2), 2));
	}
	for (const Chooser& c : choosers_)
		c.seq->fetch()->stats().open_s += seconds_since(start) / double(choosers_.size());
	KvRead read = L.fetched_read.read(pool_, scratch_.step, parts_, shape_.n_kv_heads);
	read.softmax = softmax;
	be_.attend(out, {}, q, read);
}

void KvStep::fetch_next() {
	if (choosers_.empty() || syncs()) return;
	const uint64_t all = be_.mark();
	for (uint32_t l = 0; l < shape_.n_layers; ++l) {
		be_.wait_for(layers_[l].mark);
		const auto start = Clock::now();
		const bool open = be_.done(all);
		take_picks(l);
		for (const Chooser& c : choosers_) {
			FetchStats& stats = c.seq->fetch()->stats();
			(open || be_.done(all) ? stats.open_s : stats.hidden_s) += seconds_since(start) / double(choosers_.size());
		}
	}
}

void KvStep::attend_again(uint32_t l, const View& out, const View& q, const Softmax& softmax) {
	KV_ASSERT(fetching_.empty());
	KvRead read = layers_[l].read.read(pool_, scratch_.step, parts_, shape_.n_kv_heads);
	read.softmax = softmax;
	be_.attend(out, {}, q, read);
}

void KvStep::attend(uint32_t l, const View& out, const View& q, const Softmax& softmax, const View& lse) {
	Layer& L = layers_[l];
	const bool scores = !scoring_.empty();
	KvRead read = L.read.read(pool_, scratch_.step, parts_, shape_.n_kv_heads);
	read.softmax = softmax;
	KV_ASSERT(!lse || !lse_);
	be_.attend(out, lse ? lse : lse_, q, read);
	if (scores && !L.score.empty()) {
		const View scoring = table_view(scratch_.step, scoring_at_, uint32_t(scoring_.size()));
		ScoreArgs args = L.score.read(pool_, scratch_.step, scoring, shape_.n_kv_heads);
		args.softcap = softmax.softcap, args.q_rope = softmax.q_rope;
		be_.score_slots(q, lse_, args);
	}
	if (fetching_.empty()) return;
	if (!choosers_.empty()) weigh(l, q, softmax);
	if (!choosers_.empty() && syncs()) attend_to_fetched(l, out, q, softmax);
	if (!sharers_.empty()) {
		const uint32_t n = uint32_t(sharers_.size());
		const View share = view(scratch_.fetch, size_t(shares_at_) * 4, DType::F32, n, n_heads_);
		be_.part_share(share, parts_, table_view(scratch_.step, L.shares_at, n, SHARE_WORDS));
		L.shares.resize(share.elements());
		be_.read(scratch_.fetch, share.at, std::as_writable_bytes(std::span(L.shares)));
	}
	if (!choosers_.empty() && !syncs()) L.mark = be_.mark();
}

void KvStep::end() {
	for (KvSequence* s : seqs_) s->cache().end_token();
	done_ = true;
	for (size_t i = 0; i < sharers_.size(); ++i) {
		FetchStats& stats = rows_[sharers_[i]].seq->fetch()->stats();
		double sum = 0;
		for (const Layer& L : layers_)
			for (uint32_t h = 0; h < n_heads_; ++h) sum += double(L.shares[i * n_heads_ + h]);
		stats.share += sum / (double(layers_.size()) * n_heads_);
		++stats.steps;
	}
}

} // namespace kvrun
