// The cache side of prompts: exact attention over the scratch, scores, and the way into pages.
#include "engine/cache/step.h"
#include <algorithm>

namespace kvrun {

uint32_t KvPrompt::tail_rows(const KvState& s) { return s.plan().keeps_all ? 0 : s.cache().n_f16_slots(); }

KvPrompt::KvPrompt(Backend& be, KvScratch& scratch, KvState& state, uint32_t n_new, const PromptKv& kv,
                   uint32_t n_heads, uint32_t ubatch, std::span<const uint32_t> probes)
    : be_(be), scratch_(scratch), state_(state), kv_(kv), n_new_(n_new), n_heads_(n_heads),
      ubatch_(std::min(ubatch, n_new)) {
	const KvPlan& plan = state.plan();
	const uint32_t n_kv = plan.shape.n_kv_heads, head_words = plan.shape.head_dim / 2;
	const uint32_t cap = kv.k.shape[1]; // rows of the scratch
	const bool first = state.n_tokens() == 0;
	state_.cache().begin_prompt(n_new, probes);
	state_.fit_sums();
	state_.sync(); // tables of what is older
	probes_.assign(state_.cache().probe_rows().begin(), state_.cache().probe_rows().end());
	for (const LayerPlan& L : plan.layers) balances_ |= first && L.balanced;
	if (!first && !plan.keeps_all) undo_.begin(be, state);

	StepTable own;
	const size_t dst_at = own.take(size_t(n_new) * n_kv * 2);
	const std::span<uint32_t> dst = own.at(dst_at, size_t(n_new) * n_kv * 2);
	for (uint32_t t = 0; t < n_new; ++t)
		for (uint32_t h = 0; h < n_kv; ++h)
			dst[(size_t(t) * n_kv + h) * 2] = dst[(size_t(t) * n_kv + h) * 2 + 1] = (h * cap + t) * head_words;
	const size_t rows_at = own.take(probes_.size());
	for (size_t i = 0; i < probes_.size(); ++i) own.at(rows_at, probes_.size())[i] = probes_[i] % ubatch_;
	own.upload(be_, scratch_.prompt);
	if (!probes_.empty()) probe_rows_ = view(scratch_.prompt, rows_at * 4, DType::U32, uint32_t(probes_.size()));

	if (plan.ranked() || balances_) {
		const auto aligned = [](size_t n) { return (n * 4 + 255) & ~size_t(255); };
		const size_t lse = aligned(size_t(ubatch_) * n_heads), sums = aligned(size_t(n_kv) * n_new);
		const size_t maxima = aligned(size_t(n_kv) * plan.shape.head_dim);
		if (scratch_.score.bytes() < lse + sums + maxima)
			scratch_.score = be.alloc(lse + sums + maxima, Mem::Device, "scores");
		lse_ = view(scratch_.score, 0, DType::F32, ubatch_, n_heads);
		sums_ = view(scratch_.score, lse, DType::F32, n_kv, n_new);
		q_max_ = view(scratch_.score, lse + sums, DType::F32, n_kv, plan.shape.head_dim);
	}
}

KvPrompt::~KvPrompt() {
	if (done_) return;
	try {
		undo_.restore(state_);
		state_.cache().cancel_prompt();
	} catch (...) { // half of the layers hold tokens of this block where older ones were
		state_.cache().cancel_prompt();
		state_.reset();
	}
}

KvDst KvPrompt::scratch(uint32_t first, uint32_t n) const {
	const uint32_t n_kv = state_.plan().shape.n_kv_heads;
	return {as_words(kv_.k), as_words(kv_.v), view(scratch_.prompt, size_t(first) * n_kv * 8, DType::U32, n, n_kv, 2),
	        1};
}

void KvPrompt::begin_layer(uint32_t) {
	const auto zero = [&](const View& v) {
		const std::vector<float> zeros(v.elements());
		be_.write(*v.buf, v.at, std::as_bytes(std::span(zeros)));
	};
	if (!probes_.empty()) zero(sums_);
	if (balances_) zero(q_max_);
}

const KvRead* KvPrompt::older(uint32_t l, uint32_t n_rows) {
	if (state_.runs(l).empty()) return nullptr;
	if (read_layer_ != l || read_rows_ != n_rows) {
		scratch_.table.clear();
		const uint32_t split = prompt_split(be_.info(), state_, l);
		plan_.build(state_, l, n_rows, split, /*extra=*/1, ReadPlan::Which::All, scratch_.table);
		f16_.build(state_, l, 1, split, 0, ReadPlan::Which::F16, scratch_.table);
		scratch_.table.upload(be_, scratch_.step);
		read_layer_ = l, read_rows_ = n_rows;
	}
	const View parts = scratch_.parts_view(be_, plan_.n_parts(), n_heads_, state_.plan().shape.head_dim);
	read_ = plan_.read(state_, l, scratch_.step, parts);
	return &read_;
}

void KvPrompt::attend(uint32_t l, const View& out, const View& q, uint32_t first) {
	KV_ASSERT(first % ubatch_ == 0 && q.shape[0] <= ubatch_);
	const uint32_t n = q.shape[0];
	const KvRead* read = older(l, n);
	// Probe rows of this chunk, as a stretch of the list of all.
	const auto lo = std::lower_bound(probes_.begin(), probes_.end(), first);
	const auto hi = std::lower_bound(lo, probes_.end(), first + n);
	PromptKv kv{kv_.k, kv_.v, first};
	if (lo != hi) kv.lse = rows(lse_, 0, n);
	be_.attend_prompt(out, q, kv, read);
	if (lo != hi) {
		const View probe = rows(probe_rows_, uint32_t(lo - probes_.begin()), uint32_t(hi - lo));
		be_.score_prompt(sums_, q, probe, kv);
		if (read && !f16_.empty())
			be_.score_slots(state_.slot_sums(l), q, probe, kv.lse, f16_.read(state_, l, scratch_.step, read->parts));
	}
	if (balances_ && state_.plan().layers[l].balanced) be_.channel_max(q_max_, q);
}

void KvPrompt::end_layer(uint32_t l) {
	if (balances_ && state_.plan().layers[l].balanced) be_.kv_balance(state_.balance(l), q_max_, kv_, n_new_);
	std::vector<float> slot_sums;
	if (state_.plan().ranked()) {
		new_scores_.resize(probes_.empty() ? 0 : sums_.elements());
		if (!new_scores_.empty()) be_.read(*sums_.buf, sums_.at, std::as_writable_bytes(std::span(new_scores_)));
		new_scores_.resize(sums_.elements()); // no probe rows: nobody received any attention
		be_.submit();
		be_.wait();
		if (state_.cache().n_f16_slots()) slot_sums = state_.read_sums(l, 1);
	}
	StepTable table;
	const KvMoves& moves = state_.cache().prompt_moves(l, new_scores_, slot_sums);
	moves_.build(state_, l, moves, n_new_, table);
	KV_ASSERT(moves_.rows() <= kv_.k.shape[1]);
	if (moves_.empty()) return;
	undo_.save(state_, l, moves);
	table.upload(be_, scratch_.store);
	moves_.enqueue(be_, scratch_.store, kv_);
}

void KvPrompt::end() {
	state_.cache().end_prompt();
	state_.clear_sums();
	done_ = true;
}

} // namespace kvrun
