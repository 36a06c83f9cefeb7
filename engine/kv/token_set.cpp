// One token set: which token of a sequence is in which slot of which tier, for the layers and heads that share it.
#include "engine/kv/token_set.h"
#include "engine/core/error.h"
#include "engine/kv/classify.h"
#include <algorithm>
#include <functional>

namespace kvrun {

constexpr size_t kSpare = 64; // tokens that a list may have room for beside those it holds

constexpr int kF16 = int(Tier::F16), kSalient = int(Tier::Salient), kRegular = int(Tier::Regular);

void TokenSet::clear() noexcept {
	sinks_.clear(), kept_.clear(), recent_.clear(), free_.clear();
	for (int t = 0; t < kTiers; ++t) {
		waiting_[t].clear(), live_[t].clear(), pos_[t].clear(), block_[t].clear();
		n_pages_[t] = n_blocks_[t] = packed_[t] = 0;
	}
}

void TokenSet::rows_unseen(uint32_t n_rows) {
	each_f16([&](Token& t) { t.rows_before += n_rows; });
}

void TokenSet::occupy(int tier, uint32_t slot, uint32_t pos) {
	const uint32_t page = slot / plan_->page[tier], in_page = slot % plan_->page[tier];
	uint32_t& word = live_[tier][page * 4 + in_page / 32];
	KV_ASSERT(pos_[tier][slot] == kNone && !(word >> in_page % 32 & 1));
	word |= 1u << in_page % 32;
	pos_[tier][slot] = pos;
}

void TokenSet::release(const Token& t) {
	if (t.src & kFromScratch) return;
	const uint32_t page = t.src / plan_->page[kF16], in_page = t.src % plan_->page[kF16];
	KV_ASSERT(pos_[kF16][t.src] == t.pos);
	live_[kF16][page * 4 + in_page / 32] &= ~(1u << in_page % 32);
	pos_[kF16][t.src] = kNone;
	free_.push_back(t.src);
	std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

uint32_t TokenSet::take_slot() {
	KV_ASSERT(!free_.empty());
	std::pop_heap(free_.begin(), free_.end(), std::greater<>());
	const uint32_t slot = free_.back();
	free_.pop_back();
	return slot;
}

void TokenSet::append_page(int tier) {
	++n_pages_[tier];
	live_[tier].resize(size_t(n_pages_[tier]) * 4, 0u);
	pos_[tier].resize(size_t(n_pages_[tier]) * plan_->page[tier], kNone);
}

void TokenSet::grow_f16(uint32_t n_pages) {
	while (n_pages_[kF16] < n_pages) {
		const uint32_t first = n_pages_[kF16] * plan_->page[kF16];
		append_page(kF16);
		for (uint32_t i = 0; i < plan_->page[kF16]; ++i) {
			free_.push_back(first + i);
			std::push_heap(free_.begin(), free_.end(), std::greater<>());
		}
	}
}

void TokenSet::enter(Token t) {
	if (t.pos < plan_->policy.select.sinks)
		sinks_.push_back(t);
	else
		recent_.push_back(t);
}

void TokenSet::add_scratch(uint32_t pos, uint32_t index, uint32_t rows_before, double score) {
	enter({.pos = pos, .src = kFromScratch | index, .rows_before = rows_before, .score = score});
}

uint32_t TokenSet::add(uint32_t pos, uint32_t rows_before) {
	const uint32_t slot = take_slot();
	occupy(kF16, slot, pos);
	enter({.pos = pos, .src = slot, .rows_before = rows_before, .score = 0});
	return slot;
}

void TokenSet::drop_f16_pages(uint32_t n_pages) {
	if (n_pages >= n_pages_[kF16]) return;
	const uint32_t end = n_pages * plan_->page[kF16];
	n_pages_[kF16] = n_pages;
	live_[kF16].resize(size_t(n_pages) * 4);
	pos_[kF16].resize(end);
	std::erase_if(free_, [&](uint32_t slot) { return slot >= end; });
	std::make_heap(free_.begin(), free_.end(), std::greater<>());
}

void TokenSet::remove_newest(uint32_t n, uint32_t n_pages) {
	for (; n > 0; --n) {
		const bool in_window = !recent_.empty(); // sinks came first
		release(in_window ? recent_.back() : sinks_.back());
		in_window ? recent_.pop_back() : sinks_.pop_back();
	}
	drop_f16_pages(n_pages);
}

TokenSet::Saved TokenSet::save() const {
	Saved s{sinks_, kept_, {}, recent_, free_, live_[kF16], pos_[kF16], {}, {}, {}};
	for (int t = 0; t < kTiers; ++t) {
		s.waiting[t] = waiting_[t];
		s.n_pages[t] = n_pages_[t], s.n_blocks[t] = n_blocks_[t], s.packed[t] = packed_[t];
	}
	return s;
}

void TokenSet::restore(Saved&& s) {
	sinks_ = std::move(s.sinks), kept_ = std::move(s.kept), recent_ = std::move(s.recent), free_ = std::move(s.free);
	live_[kF16] = std::move(s.f16_live), pos_[kF16] = std::move(s.f16_pos);
	n_pages_[kF16] = s.n_pages[kF16];
	for (const int t : {kSalient, kRegular}) {
		waiting_[t] = std::move(s.waiting[t]);
		n_pages_[t] = s.n_pages[t], n_blocks_[t] = s.n_blocks[t], packed_[t] = s.packed[t];
		live_[t].resize(size_t(n_pages_[t]) * 4);
		pos_[t].resize(size_t(n_pages_[t]) * plan_->page[t]);
		if (!block_[t].empty()) block_[t].resize(n_pages_[t]);
		if (plan_->fill[t] != Fill::Append) continue; // whole pages were added
		for (uint32_t slot = packed_[t]; slot < pos_[t].size(); ++slot) {
			const uint32_t page = slot / plan_->page[t], in_page = slot % plan_->page[t];
			live_[t][page * 4 + in_page / 32] &= ~(1u << in_page % 32);
			pos_[t][slot] = kNone;
		}
	}
}

uint32_t TokenSet::newest_slot() const {
	const Token& t = recent_.empty() ? sinks_.back() : recent_.back();
	return t.src;
}

bool TokenSet::ends_with(uint32_t pos) const {
	if (!recent_.empty()) return recent_.back().pos == pos;
	return !sinks_.empty() && sinks_.back().pos == pos;
}

bool TokenSet::is_kept(uint32_t pos) const {
	const auto at =
	    std::lower_bound(kept_.begin(), kept_.end(), pos, [](const Token& t, uint32_t p) { return t.pos < p; });
	return at != kept_.end() && at->pos == pos;
}

void TokenSet::flush(const FlushEvent& e, uint32_t scored_rows, SetMoves& moves) {
	const Select& s = plan_->policy.select;
	const bool stays =
	    s.rank == Rank::LogWindow || plan_->salient_stays; // the better tokens are f16, and can be demoted
	std::vector<Token> candidates;
	if (stays) candidates.swap(kept_);
	candidates.insert(candidates.end(), recent_.begin(), recent_.begin() + e.leaving);
	recent_.erase(recent_.begin(), recent_.begin() + e.leaving);
	KV_ASSERT(candidates.size() == e.candidates);

	std::vector<double> score;
	if (plan_->ranked())
		for (const Token& t : candidates) {
			const uint32_t rows = std::max(1u, scored_rows - t.rows_before);
			score.push_back(s.rank == Rank::ScoreMean ? t.score / rows : t.score);
		}
	const Flush verdict = classify(s, e.candidates, e.salient, score);
	KV_ASSERT(verdict.salient.size() == e.salient);
	std::vector<Token>& better = stays ? kept_ : waiting_[kSalient];
	for (uint32_t i : verdict.salient) better.push_back(candidates[i]);
	for (uint32_t i : verdict.regular) waiting_[kRegular].push_back(candidates[i]);
	settle(kSalient, moves);
	settle(kRegular, moves);
	recent_.shrink_to_fit();
	for (auto* list : {&kept_, &waiting_[kSalient], &waiting_[kRegular]})
		if (list->capacity() > list->size() * 5 / 4 + kSpare) list->shrink_to_fit(); // a prompt's tokens have passed
}

void TokenSet::settle(int tier, SetMoves& moves) {
	std::vector<Token>& waiting = waiting_[tier];
	uint32_t n = uint32_t(waiting.size());
	switch (plan_->fill[tier]) {
	case Fill::None: break; // evicted
	case Fill::Append: write_pages(tier, n, moves); break;
	case Fill::Group:
		n -= n % plan_->page[tier];
		write_pages(tier, n, moves);
		break;
	case Fill::Block:
		if (!n) break;
		moves.blocks.push_back({Tier(tier), head_, uint32_t(moves.sources.size()), n, n_blocks_[tier]++});
		write_pages(tier, n, moves);
		break;
	}
	for (uint32_t i = 0; i < n; ++i) release(waiting[i]);
	waiting.erase(waiting.begin(), waiting.begin() + n);
}

void TokenSet::write_pages(int tier, uint32_t n, SetMoves& moves) {
	const uint32_t page = plan_->page[tier];
	const bool new_pages = plan_->fill[tier] == Fill::Block;
	uint32_t at = new_pages ? n_pages_[tier] * page : packed_[tier]; // slot; only a block leaves empty ones behind
	for (uint32_t done = 0; done < n;) {
		if (at == n_pages_[tier] * page) {
			append_page(tier);
			if (new_pages) block_[tier].push_back(n_blocks_[tier] - 1);
		}
		const uint32_t run = std::min(n - done, page - at % page);
		write_run(tier, &waiting_[tier][done], run, at / page, at % page, moves);
		done += run, at += run;
	}
	packed_[tier] += n;
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

void TokenSet::store(SetMoves& moves) {
	const uint32_t page = plan_->page[kF16];
	uint32_t expected = kNone; // slot that would continue the last run
	each_f16([&](Token& t) {
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
}

} // namespace kvrun
