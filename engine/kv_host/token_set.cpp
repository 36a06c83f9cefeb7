// One token set: the tier and slot of each token of a sequence, for the layers and heads that share it.
#include "engine/kv_host/token_set.h"
#include "engine/core/error.h"
#include "engine/core/make_room.h"
#include "engine/kv_host/classify.h"
#include <algorithm>
#include <bit>

namespace kvrun {

constexpr int kF16 = int(Tier::F16), kSalient = int(Tier::Salient), kRegular = int(Tier::Regular);

TokenSet::TokenSet(const KvPlan& plan, uint32_t head)
    : plan_(&plan), head_(head), packed_pos_{SlotPositions(plan.page[kSalient]), SlotPositions(plan.page[kRegular])},
      recent_from_(plan.policy.select.sinks) {}

void TokenSet::clear() noexcept {
	for (int t = 0; t < kTiers; ++t) {
		waiting_[t].clear(), live_[t].clear(), block_[t].clear();
		n_pages_[t] = n_blocks_[t] = packed_[t] = 0;
	}
	for (SlotPositions& p : packed_pos_) p.clear();
	f16_pos_.clear(), score_.clear(), rows_before_.clear();
	recent_from_ = plan_->policy.select.sinks, newest_ = kNone, free_from_ = 0;
}

void TokenSet::rows_unseen(uint32_t n_rows) {
	for (uint32_t& rows : rows_before_) rows += n_rows;
}

// ---- slots

void TokenSet::occupy(int tier, uint32_t slot, uint32_t pos) {
	const uint32_t page = slot / plan_->page[tier], in_page = slot % plan_->page[tier];
	uint32_t& word = live_[tier][page * 4 + in_page / 32];
	KV_ASSERT(!(word >> in_page % 32 & 1));
	word |= 1u << in_page % 32;
	if (tier == kF16)
		f16_pos_[slot] = pos;
	else
		packed_pos(tier).set(slot, pos);
}

void TokenSet::release(uint32_t slot) noexcept {
	const uint32_t page = slot / plan_->page[kF16], in_page = slot % plan_->page[kF16];
	live_[kF16][page * 4 + in_page / 32] &= ~(1u << in_page % 32);
	f16_pos_[slot] = kNone;
	free_from_ = std::min(free_from_, page);
}

uint32_t TokenSet::take_slot() {
	const uint32_t page = plan_->page[kF16];
	for (;; ++free_from_) {
		KV_ASSERT(free_from_ < n_pages_[kF16]);
		for (uint32_t w = 0; w < page / 32; ++w)
			if (const uint32_t full = live_[kF16][free_from_ * 4 + w]; full != UINT32_MAX)
				return free_from_ * page + w * 32 + uint32_t(std::countr_one(full));
	}
}

void TokenSet::append_page(int tier) {
	++n_pages_[tier];
	const auto grow = [](auto& list, size_t n, auto value) {
		make_room(list, n - list.size());
		list.resize(n, value);
	};
	grow(live_[tier], size_t(n_pages_[tier]) * 4, 0u);
	if (tier != kF16) return packed_pos(tier).append_page();
	const size_t n_slots = size_t(n_pages_[kF16]) * plan_->page[kF16];
	grow(f16_pos_, n_slots, kNone);
	if (plan_->ranked()) grow(score_, n_slots, 0.0f);
	if (takes_mean(plan_->policy.select.rank)) grow(rows_before_, n_slots, 0u);
}

void TokenSet::grow_f16(uint32_t n_pages) {
	while (n_pages_[kF16] < n_pages) append_page(kF16);
}

void TokenSet::add(uint32_t pos, uint32_t rows_before) {
	newest_ = take_slot();
	occupy(kF16, newest_, pos);
	if (!score_.empty()) score_[newest_] = 0;
	if (!rows_before_.empty()) rows_before_[newest_] = rows_before;
}

void TokenSet::drop_f16_pages(uint32_t n_pages) noexcept {
	if (n_pages >= n_pages_[kF16]) return;
	const size_t end = size_t(n_pages) * plan_->page[kF16];
	n_pages_[kF16] = n_pages;
	live_[kF16].resize(size_t(n_pages) * 4);
	f16_pos_.resize(end);
	score_.resize(std::min(score_.size(), end));
	rows_before_.resize(std::min(rows_before_.size(), end));
	free_from_ = std::min(free_from_, n_pages);
}

void TokenSet::remove_newest(uint32_t n) noexcept {
	if (n == 0 || newest_ == kNone) return;
	const uint32_t end = f16_pos_[newest_] + 1 - n;
	newest_ = kNone;
	for (uint32_t slot = 0; slot < f16_pos_.size(); ++slot) {
		const uint32_t pos = f16_pos_[slot];
		if (pos == kNone) continue;
		if (pos >= end)
			release(slot);
		else if (newest_ == kNone || pos > f16_pos_[newest_])
			newest_ = slot;
	}
}

TokenSet::Saved TokenSet::save() const {
	Saved s{{},           live_[kF16], f16_pos_,   rows_before_, score_, {packed_pos_[0].save(), packed_pos_[1].save()},
	        recent_from_, newest_,     free_from_, {},           {},     {}};
	for (int t = 0; t < kTiers; ++t) {
		s.waiting[t] = waiting_[t];
		s.n_pages[t] = n_pages_[t], s.n_blocks[t] = n_blocks_[t], s.packed[t] = packed_[t];
	}
	return s;
}

void TokenSet::restore(Saved&& s) noexcept {
	live_[kF16] = std::move(s.f16_live), f16_pos_ = std::move(s.f16_pos);
	rows_before_ = std::move(s.rows_before), score_ = std::move(s.score);
	recent_from_ = s.recent_from, newest_ = s.newest, free_from_ = s.free_from;
	n_pages_[kF16] = s.n_pages[kF16];
	for (const int t : {kSalient, kRegular}) {
		waiting_[t] = std::move(s.waiting[t]);
		packed_pos(t).restore(std::move(s.packed_pos[t - 1]));
		n_pages_[t] = s.n_pages[t], n_blocks_[t] = s.n_blocks[t], packed_[t] = s.packed[t];
		live_[t].resize(size_t(n_pages_[t]) * 4);
		if (!block_[t].empty()) block_[t].resize(n_pages_[t]);
		if (plan_->fill[t] != Fill::Append) continue; // whole pages were added
		for (uint32_t slot = packed_[t]; slot < n_pages_[t] * plan_->page[t]; ++slot) {
			const uint32_t page = slot / plan_->page[t], in_page = slot % plan_->page[t];
			live_[t][page * 4 + in_page / 32] &= ~(1u << in_page % 32);
		}
	}
}

// ---- lists

TokenSet::Token TokenSet::at_slot(uint32_t slot) const {
	return {.pos = f16_pos_[slot],
	        .src = slot,
	        .rows_before = rows_before_.empty() ? 0 : rows_before_[slot],
	        .score = score_.empty() ? 0 : score_[slot]};
}

TokenSet::Lists TokenSet::open() const {
	Lists L;
	std::vector<bool> waits(f16_pos_.size());
	for (int t = 0; t < kTiers; ++t)
		for (const uint32_t slot : waiting_[t]) L.waiting[t].push_back(at_slot(slot)), waits[slot] = true;
	std::vector<Token> others;
	for (uint32_t slot = 0; slot < f16_pos_.size(); ++slot)
		if (f16_pos_[slot] != kNone && !waits[slot]) others.push_back(at_slot(slot));
	std::ranges::sort(others, {}, &Token::pos);
	for (const Token& t : others) {
		if (t.pos < plan_->policy.select.sinks)
			L.sinks.push_back(t);
		else if (t.pos < recent_from_)
			L.kept.push_back(t);
		else
			L.recent.push_back(t);
	}
	return L;
}

void TokenSet::close(const Lists& L) {
	const bool ranked = !score_.empty(), mean = !rows_before_.empty();
	L.each([&](const Token& t) {
		if (ranked) score_[t.src] = float(t.score);
		if (mean) rows_before_[t.src] = t.rows_before;
	});
	for (int t = 0; t < kTiers; ++t) {
		waiting_[t].clear();
		for (const Token& w : L.waiting[t]) waiting_[t].push_back(w.src);
	}
	if (!L.recent.empty())
		newest_ = L.recent.back().src;
	else
		newest_ = L.sinks.empty() ? kNone : L.sinks.back().src;
}

void TokenSet::add_scratch(Lists& L, uint32_t pos, uint32_t index, uint32_t rows_before, double score) const {
	const Token t{.pos = pos, .src = kFromScratch | index, .rows_before = rows_before, .score = score};
	if (pos < plan_->policy.select.sinks)
		L.sinks.push_back(t);
	else
		L.recent.push_back(t);
}

void TokenSet::store(Lists&& L, SetMoves& moves) {
	const uint32_t page = plan_->page[kF16];
	uint32_t expected = kNone; // slot that would continue the last run
	L.each([&](Token& t) {
		if (!(t.src & kFromScratch)) return;
		const uint32_t slot = take_slot();
		if (slot != expected || slot % page == 0)
			moves.stores.push_back({Tier::F16, head_, uint32_t(moves.sources.size()), 0, slot / page, slot % page});
		moves.sources.push_back(t.src);
		if (plan_->fetches()) moves.positions.push_back(t.pos);
		++moves.stores.back().n;
		expected = slot + 1;
		occupy(kF16, slot, t.pos);
		t.src = slot;
	});
	close(L);
}

// ---- flushes

bool TokenSet::stays() const { return plan_->policy.select.rank == Rank::LogWindow || plan_->salient_stays; }

double TokenSet::rank_score(const Token& t, uint32_t scored_rows) const {
	const uint32_t rows = std::max(1u, scored_rows - t.rows_before);
	return takes_mean(plan_->policy.select.rank) ? t.score / rows : t.score;
}

void TokenSet::flush(Lists& L, const FlushEvent& e, uint32_t scored_rows, SetMoves& moves) {
	std::vector<Token> candidates;
	candidates.reserve(e.candidates);
	if (stays()) candidates.insert(candidates.end(), L.kept.begin(), L.kept.end()), L.kept.clear();
	candidates.insert(candidates.end(), L.recent.begin(), L.recent.begin() + e.leaving);
	L.recent.erase(L.recent.begin(), L.recent.begin() + e.leaving);
	recent_from_ += e.leaving;
	KV_ASSERT(candidates.size() == e.candidates);

	std::vector<double> score;
	if (plan_->ranked())
		for (const Token& t : candidates) score.push_back(rank_score(t, scored_rows));
	const Flush verdict = classify(plan_->policy.select, e.candidates, e.salient, score);
	KV_ASSERT(verdict.salient.size() == e.salient);
	std::vector<Token>& better = stays() ? L.kept : L.waiting[kSalient];
	for (uint32_t i : verdict.salient) better.push_back(candidates[i]);
	for (uint32_t i : verdict.regular) L.waiting[kRegular].push_back(candidates[i]);
	for (const int t : {kSalient, kRegular}) settle(L.waiting[t], t, moves);
}

void TokenSet::flush(const FlushEvent& e, uint32_t scored_rows, SetMoves& moves) {
	if (stays() && plan_->ranked()) return demote(e, scored_rows, moves);
	Lists L = open();
	flush(L, e, scored_rows, moves);
	close(L);
}

// A flush where better tokens stay: only a few of thousands of candidates leave f16. They are found in one pass over
// the slots, without a list of the others.
void TokenSet::demote(const FlushEvent& e, uint32_t scored_rows, SetMoves& moves) {
	std::vector<Token> waiting;
	std::vector<bool> waits(f16_pos_.size());
	for (const uint32_t slot : waiting_[kRegular]) waiting.push_back(at_slot(slot)), waits[slot] = true;
	struct Leaving {
		Ranked rank;
		uint32_t slot;
	};
	const auto above = [](const Leaving& a, const Leaving& b) { return ranks_above(a.rank, b.rank); };
	const auto best_first = [&](const Leaving& a, const Leaving& b) { return above(b, a); };
	std::vector<Leaving> worst; // the worst so far; a heap with the best of them on top
	const size_t n_worst = e.candidates - e.salient;
	const uint32_t sinks = plan_->policy.select.sinks, end = recent_from_ + e.leaving;
	uint32_t n = 0;
	for (uint32_t slot = 0; slot < f16_pos_.size(); ++slot) {
		const uint32_t pos = f16_pos_[slot];
		if (pos < sinks || pos >= end || waits[slot]) continue; // an empty slot's position is larger than any other
		++n;
		const Leaving l{{rank_score(at_slot(slot), scored_rows), pos}, slot};
		if (worst.size() == n_worst) {
			if (worst.empty() || above(l, worst.front())) continue;
			std::pop_heap(worst.begin(), worst.end(), best_first);
			worst.pop_back();
		}
		worst.push_back(l);
		std::push_heap(worst.begin(), worst.end(), best_first);
	}
	KV_ASSERT(n == e.candidates && worst.size() == n_worst);
	std::ranges::sort(worst, {}, [](const Leaving& l) { return l.rank.position; });
	for (const Leaving& l : worst) waiting.push_back(at_slot(l.slot));
	recent_from_ = end;
	settle(waiting, kRegular, moves);
	waiting_[kRegular].clear();
	for (const Token& t : waiting) waiting_[kRegular].push_back(t.src);
}

void TokenSet::settle(std::vector<Token>& waiting, int tier, SetMoves& moves) {
	uint32_t n = uint32_t(waiting.size());
	switch (plan_->fill[tier]) {
	case Fill::None: break; // evicted
	case Fill::Append: write_pages(tier, waiting.data(), n, moves); break;
	case Fill::Group:
		n -= n % plan_->page[tier];
		write_pages(tier, waiting.data(), n, moves);
		break;
	case Fill::Block:
		if (!n) break;
		moves.blocks.push_back({Tier(tier), head_, uint32_t(moves.sources.size()), n, n_blocks_[tier]++});
		write_pages(tier, waiting.data(), n, moves);
		break;
	}
	for (uint32_t i = 0; i < n; ++i)
		if (!(waiting[i].src & kFromScratch)) release(waiting[i].src);
	waiting.erase(waiting.begin(), waiting.begin() + n);
}

void TokenSet::write_pages(int tier, const Token* first, uint32_t n, SetMoves& moves) {
	const uint32_t page = plan_->page[tier];
	const bool new_pages = plan_->fill[tier] == Fill::Block;
	uint32_t at = new_pages ? n_pages_[tier] * page : packed_[tier]; // only Fill::Block leaves empty slots
	for (uint32_t done = 0; done < n;) {
		if (at == n_pages_[tier] * page) {
			append_page(tier);
			if (new_pages) block_[tier].push_back(n_blocks_[tier] - 1);
		}
		const uint32_t run = std::min(n - done, page - at % page);
		write_run(tier, first + done, run, at / page, at % page, moves);
		done += run, at += run;
	}
	packed_[tier] += n;
	packed_pos(tier).seal(plan_->fill[tier] == Fill::Append ? packed_[tier] / page : n_pages_[tier]);
}

void TokenSet::write_run(int tier, const Token* first, uint32_t n, uint32_t page, uint32_t slot, SetMoves& moves) {
	const uint32_t src = uint32_t(moves.sources.size());
	for (uint32_t i = 0; i < n; ++i) {
		moves.sources.push_back(first[i].src);
		if (plan_->fetches()) moves.positions.push_back(first[i].pos);
		occupy(tier, page * plan_->page[tier] + slot + i, first[i].pos);
	}
	moves.packs.push_back({Tier(tier), head_, src, n, page, slot});
}

// ---- what is where

std::vector<uint32_t> TokenSet::positions(Tier t) const { return t == Tier::F16 ? f16_pos_ : packed_pos(int(t)).all(); }

uint32_t TokenSet::position(Tier t, uint32_t slot) const {
	return t == Tier::F16 ? f16_pos_[slot] : packed_pos(int(t)).at(slot);
}

uint32_t TokenSet::n_from(uint32_t pos) const {
	return newest_ == kNone || f16_pos_[newest_] < pos ? 0 : f16_pos_[newest_] + 1 - pos;
}

void TokenSet::mark_tiers(std::span<uint8_t> tier) const {
	for (const Tier t : kAllTiers)
		for (const uint32_t pos : positions(t))
			if (pos != kNone) tier[pos] = uint8_t(t);
	if (!plan_->ranked()) return;
	for (const uint32_t pos : f16_pos_) // a token kept in f16 for its score is Salient, in any slot
		if (pos != kNone && pos >= plan_->policy.select.sinks && pos < recent_from_) tier[pos] = uint8_t(kSalient);
	for (const auto& waiting : waiting_)
		for (const uint32_t slot : waiting) tier[f16_pos_[slot]] = uint8_t(kF16);
}

} // namespace kvrun
