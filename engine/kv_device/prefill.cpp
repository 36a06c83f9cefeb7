// The cache side of one prompt block of one sequence.
#include "engine/kv_device/prefill.h"
#include "engine/core/round.h"
#include "engine/kv_device/fetch.h"
#include <algorithm>

namespace kvrun {

uint32_t KvPrefill::tail_rows(const KvSequence& s) { return s.plan().keeps_all ? 0 : s.cache().n_f16_slots(); }

uint32_t KvPrefill::older_rows(const KvSequence& s, Window window) {
	return window ? s.n_tokens() - window.first_seen(s.n_tokens()) : 0;
}

KvPrefill::KvPrefill(Backend& be, KvScratch& scratch, KvSequence& seq, uint32_t n_new, const KvRows& own,
                     uint32_t n_heads, uint32_t most_rows, std::span<const uint32_t> probes,
                     std::vector<KvMemory> by_layer)
    : be_(be), scratch_(scratch), seq_(seq), own_(own), by_layer_(std::move(by_layer)), n_new_(n_new),
      n_heads_(n_heads), most_rows_(std::min(most_rows, n_new)), choices_(seq.pool()) {
	const uint32_t first = seq.n_tokens();
	if (own.window) own_.first = older_rows(seq, own.window);
	if (KvFetch* f = seq.fetch()) f->reserve_host(seq.cache(), first + n_new);
	if (n_new) seq_.cache().begin_prompt(n_new, probes);
	try {
		seq_.copy_pages();
		prepare(first);
	} catch (...) {
		if (n_new) seq_.cache().cancel_prompt();
		throw;
	}
}

void KvPrefill::prepare(uint32_t first_token) {
	const KvPlan& plan = seq_.plan();
	const uint32_t n_kv = plan.shape.n_kv_heads;
	const uint32_t cap = own(0).k.shape[1]; // rows of the scratch
	seq_.fit_sums();
	seq_.sync(); // tables of what is older
	if (!n_new_) return;
	probes_.assign(seq_.cache().probe_rows().begin(), seq_.cache().probe_rows().end());
	for (const LayerPlan& L : plan.layers) balances_ |= first_token == 0 && L.balanced;
	if (balances_) seq_.begin_balance(n_new_);
	if (first_token > 0 && !plan.keeps_all) undo_.begin(be_, seq_);

	StepTable table;
	const size_t n = size_t(n_new_) * n_kv * 2;
	const std::span<uint32_t> dst = table.at(table.take(n), n);
	for (uint32_t t = 0; t < n_new_; ++t)
		for (uint32_t h = 0; h < n_kv; ++h) {
			const uint32_t row = h * cap + own_.first + t;
			dst[(size_t(t) * n_kv + h) * 2] = row * (plan.shape.head_dim / 2);
			dst[(size_t(t) * n_kv + h) * 2 + 1] = row * (plan.shape.v_dim() / 2);
		}
	table.upload(be_, dst_);
	if (!probes_.empty()) rows_ = be_.alloc(size_t(most_rows_) * 4, Mem::Device, "probe rows");

	if (plan.ranked() || balances_) {
		const auto aligned = [](size_t words) { return align_up(words * 4, kBufferAlign); };
		const size_t lse = aligned(size_t(most_rows_) * n_heads_), sums = aligned(size_t(n_kv) * n_new_);
		const size_t maxima = aligned(size_t(n_kv) * plan.shape.head_dim);
		layer_sums_ = by_layer_.empty() ? 0 : sums + maxima;
		score_ = be_.alloc(lse + (sums + maxima) * std::max<size_t>(by_layer_.size(), 1), Mem::Device, "scores");
		lse_ = view(score_, 0, DType::F32, most_rows_, n_heads_);
		sums_ = view(score_, lse, DType::F32, n_kv, n_new_);
		q_max_ = view(score_, lse + sums, DType::F32, n_kv, plan.shape.head_dim);
	}
}

KvPrefill::~KvPrefill() {
	if (done_ || !n_new_) return;
	try {
		if (seq_.fetch()) be_.submit(), be_.wait(); // copies to the host may be under way
		undo_.restore(seq_);
		seq_.cache().cancel_prompt();
	} catch (...) { // some layers hold tokens of this block in place of older ones
		seq_.cache().cancel_prompt();
		seq_.reset();
	}
}

KvRows KvPrefill::own(uint32_t l) const {
	KvRows r = own_;
	if (!by_layer_.empty()) r.k = by_layer_[l].k, r.v = by_layer_[l].v;
	return r;
}

static View moved(View v, size_t bytes) {
	v.at += bytes;
	return v;
}
View KvPrefill::sums(uint32_t l) const { return moved(sums_, l * layer_sums_); }
View KvPrefill::q_max(uint32_t l) const { return moved(q_max_, l * layer_sums_); }

KvDst KvPrefill::destination(uint32_t l, uint32_t first, uint32_t n) const {
	const uint32_t n_kv = seq_.plan().shape.n_kv_heads;
	const KvRows to = own(l);
	return {as_words(to.k), as_words(to.v), table_view(dst_, size_t(first) * n_kv * 2, n, n_kv, 2), 1};
}

// Loads the latest older tokens, ordered by position, in front of the block's own.
void KvPrefill::load_older(uint32_t l) { load_rows(l, seq_, seq_.n_tokens() - own_.first, own_.first, 0); }

void KvPrefill::load_own(uint32_t l, const KvSequence& from, uint32_t first) {
	load_rows(l, from, first, n_new_, own_.first);
}

// Loads tokens of f16 pages, ordered by position, into rows of the block's scratch.
void KvPrefill::load_rows(uint32_t l, const KvSequence& from, uint32_t first_token, uint32_t n, uint32_t first_row) {
	const uint32_t n_kv = from.plan().shape.n_kv_heads, page = from.plan().page[int(Tier::F16)];
	const std::span<const uint32_t> pages = from.cache().pages(l, Tier::F16);
	const std::vector<uint32_t> position = from.cache().positions(l, Tier::F16, 0); // all heads hold the same tokens
	std::vector<SlotCell> cells;
	for (uint32_t slot = 0; slot < position.size(); ++slot)
		if (position[slot] != kNone && position[slot] >= first_token && position[slot] - first_token < n)
			for (uint32_t h = 0; h < n_kv; ++h)
				cells.push_back({first_row + position[slot] - first_token, h, page,
				                 from.f16_slot(l, h, pages[slot / page], slot % page)});
	KV_ASSERT(cells.size() == size_t(n) * n_kv);
	StepTable table;
	const std::vector<ChunkRows> loads = lay_rows(seq_.pool(), cells, n_kv, table);
	table.upload(be_, older_words_);
	const KvRows to = own(l);
	for (const ChunkRows& r : loads) be_.kv_load({to.k, to.v, r.first}, r.n, r.dst(older_words_, n_kv));
}

void KvPrefill::begin_layer(uint32_t l) {
	if (own_.first) load_older(l);
	const auto zero = [&](const View& v) {
		const std::vector<float> zeros(v.elements());
		be_.write(*v.buf, v.at, std::as_bytes(std::span(zeros)));
	};
	if (!probes_.empty()) zero(sums(l));
	if (balances_) zero(q_max(l));
}

uint32_t KvPrefill::unpack_older(uint32_t l, const KvMemory& to) {
	StepTable table;
	const uint32_t n = read_plan_.build_rows(l, seq_, table);
	read_layer_ = kNone;
	if (!n) return 0;
	KV_ASSERT(n <= to.k.shape[1]);
	table.upload(be_, read_words_);
	be_.unpack_latents({to.k, to.v}, read_plan_.read(seq_.pool(), read_words_, {}, 1));
	return n;
}

const KvRead* KvPrefill::older(uint32_t l, uint32_t n_rows, const Softmax& softmax, const View& chosen) {
	if (seq_.runs(l).empty()) return nullptr;
	const bool chooses = bool(chosen);
	if (read_layer_ != l || read_rows_ != n_rows || chooses != !choices_.empty()) {
		StepTable table;
		const uint32_t piece = prompt_piece(seq_.pool().device(), seq_, l);
		std::vector<ReadRows> rows;
		choices_.clear();
		if (chooses) choices_.add(seq_, 0, n_rows);
		for (uint32_t i = 0; chooses && i < n_rows; ++i)
			rows.push_back({&seq_, i, 1, piece, Fetched::None, nullptr, choices_.of(i)});
		if (!chooses) rows.push_back({&seq_, 0, n_rows, piece});
		choices_at_ = choices_.plan(l, table);
		read_plan_.build(l, rows, /*extra=*/1, table);
		table.upload(be_, read_words_);
		read_layer_ = l, read_rows_ = n_rows;
	}
	if (chooses) choices_.enqueue(be_, chosen, read_words_, choices_at_, choices_.n_work());
	const KvShape& shape = seq_.plan().shape;
	const View parts = scratch_.parts_view(be_, read_plan_.n_parts(), n_heads_, shape.head_dim);
	read_ = read_plan_.read(seq_.pool(), read_words_, parts, shape.n_kv_heads);
	read_.softmax = softmax;
	return &read_;
}

void KvPrefill::attend(uint32_t l, const View& out, const View& q, uint32_t first, const Softmax& softmax, bool counts,
                       bool together, const View& chosen, const View& wanted_lse) {
	const uint32_t n = q.shape[0];
	KV_ASSERT(n <= most_rows_ && first + n <= n_new_);
	const KvRead* read = own_.window ? nullptr : older(l, n, softmax, chosen);
	const bool scores = counts && scores_rows(first, n);
	KvRows kv = own(l);
	kv.first += first, kv.softmax = softmax, kv.ahead = together ? kAllRows : 0;
	kv.seen = chosen, kv.seen_at = seq_.n_tokens();
	KV_ASSERT(!scores || !wanted_lse);
	const View lse = scores ? this->lse(n) : wanted_lse;
	be_.attend_prompt(out, lse, q, kv, read);
	if (scores) score(l, q, lse, first, softmax, chosen);
	if (counts && balances_ && seq_.plan().layers[l].balanced) be_.channel_max(q_max(l), q);
}

KvDst KvPrefill::destination_of(uint32_t l, std::span<const uint32_t> entries) {
	const KvShape& shape = seq_.plan().shape;
	KV_ASSERT(shape.n_kv_heads == 1);
	StepTable table;
	std::vector<uint32_t> at;
	for (const uint32_t e : entries)
		for (const uint32_t dim : {shape.head_dim, shape.v_dim()})
			at.push_back(e == kSkip ? kSkip : (own_.first + e) * (dim / 2));
	const size_t words = table.put(at);
	table.upload(be_, entry_words_);
	const KvRows to = own(l);
	return {as_words(to.k), as_words(to.v), table_view(entry_words_, words, uint32_t(entries.size()), 1, 2), 1};
}

void KvPrefill::attend_entries(uint32_t l, const View& out, const View& lse, const View& q,
                               std::span<const uint32_t> visible, const Softmax& softmax, const View& chosen) {
	const uint32_t n = q.shape[0];
	KV_ASSERT(visible.size() == n && visible.back() <= n_new_);
	KvRows own = this->own(l);
	own.first += visible[0], own.softmax = softmax; // row i sees tokens up to own.first + i, and so many have bits
	own.seen = chosen, own.seen_at = seq_.n_tokens();
	if (!chosen) {
		const uint32_t words = (own.first + n) / 32 + 1;
		std::vector<uint32_t> bits(size_t(n) * words);
		for (uint32_t i = 0; i < n; ++i) {
			const uint32_t seen = own_.first + visible[i];
			uint32_t* const row = &bits[size_t(i) * words];
			std::fill_n(row, seen / 32, UINT32_MAX);
			row[seen / 32] = (1u << seen % 32) - 1;
		}
		StepTable table;
		const size_t at = table.put(bits);
		table.upload(be_, entry_words_);
		own.seen = table_view(entry_words_, at, n, words), own.seen_at = 0;
	}
	be_.attend_prompt(out, lse, q, own, older(l, n, softmax, chosen));
}

bool KvPrefill::scores_rows(uint32_t first, uint32_t n) const {
	const auto lo = std::ranges::lower_bound(probes_, first);
	return lo != probes_.end() && *lo < first + n;
}

// Attention that tokens receive from the probe rows of a piece.
// chosen: as older() has planned it.
void KvPrefill::score(uint32_t l, const View& q, const View& lse, uint32_t first, const Softmax& softmax,
                      const View& chosen) {
	KvRows own = this->own(l);
	own.first += first, own.softmax = softmax;
	own.seen = chosen, own.seen_at = seq_.n_tokens();
	std::vector<uint32_t> listed; // relative to the piece
	for (auto at = std::ranges::lower_bound(probes_, first); at != probes_.end() && *at < first + q.shape[0]; ++at)
		listed.push_back(*at - first);
	be_.write(rows_, 0, std::as_bytes(std::span(listed)));
	const View probe = view(rows_, 0, DType::U32, uint32_t(listed.size()));
	be_.score_prompt(sums(l), q, lse, probe, own, seq_.plan().policy.select.saliency());
	if (!seq_.cache().n_f16_slots()) return;
	StepTable table;
	const uint32_t piece = prompt_piece(seq_.pool().device(), seq_, l);
	std::vector<ScoreRows> rows;
	for (uint32_t i = 0; chosen && i < listed.size(); ++i)
		rows.push_back({&seq_, i, 1, piece, nullptr, choices_.of(listed[i])});
	if (!chosen) rows.push_back({&seq_, 0, uint32_t(listed.size()), piece});
	slot_plan_.build(l, rows, table);
	if (slot_plan_.empty()) return;
	table.upload(be_, slot_words_);
	ScoreArgs args = slot_plan_.read(seq_.pool(), slot_words_, probe, seq_.plan().shape.n_kv_heads);
	args.softcap = own.softmax.softcap, args.q_rope = own.softmax.q_rope;
	be_.score_slots(q, lse, args);
}

void KvPrefill::plan_moves(uint32_t l) {
	if (!n_new_) return;
	const KvPlan& plan = seq_.plan();
	if (balances_ && plan.layers[l].balanced) be_.kv_balance(seq_.balance(l), q_max(l), own(l), n_new_);
	std::vector<float> slot_sums;
	if (plan.ranked()) {
		std::vector<float> raw;
		new_scores_.assign(sums_.elements(), 0.f); // without probe rows no token received attention
		if (!probes_.empty()) be_.read(*sums_.buf, sums(l).at, std::as_writable_bytes(std::span(new_scores_)));
		if (seq_.cache().n_f16_slots()) seq_.read_sums(l, 1, raw);
		be_.submit();
		be_.wait();
		slot_sums = seq_.sums_of(raw);
	}
	move_layer_ = l;
	const KvMoves& moves = seq_.cache().prompt_moves(l, new_scores_, slot_sums);
	StepTable table;
	moves_.begin(plan.shape.n_kv_heads, n_new_);
	moves_.add(seq_, l, moves);
	moves_.end(seq_.pool(), table);
	KV_ASSERT(own_.first + moves_.rows() <= own(l).k.shape[1]);
	if (moves_.empty()) return;
	undo_.save(seq_, l, moves);
	table.upload(be_, store_);
}

bool KvPrefill::move(uint64_t most_tokens) {
	if (!n_new_) return true;
	const KvRows own = this->own(move_layer_);
	if (!moves_.enqueue_some(be_, store_, own, most_tokens)) return false;
	if (KvFetch* f = seq_.fetch()) { // the layer's own keys and values, and what it gathered
		for (uint32_t h = 0; h < seq_.plan().shape.n_kv_heads; ++h)
			f->host().keep(move_layer_, h, own, 0, seq_.n_tokens(), n_new_);
		f->keep(move_layer_, own, moves_.leaving(0));
	}
	return true;
}

void KvPrefill::end() {
	if (!n_new_) return;
	if (KvFetch* f = seq_.fetch()) f->prompt_read(seq_.n_tokens(), n_new_);
	seq_.cache().end_prompt();
	seq_.clear_sums();
	done_ = true;
}

} // namespace kvrun
