// Live bits of pages for rows that attend to chosen tokens.
#include "engine/kv_device/chosen.h"
#include <algorithm>

namespace kvrun {

// Sets of tokens that a row attends to: one, or one for each KV head.
static uint32_t sets_of(const KvSequence& s) { return std::max(s.plan().n_heads, s.plan().choices); }

void RowChoices::clear() {
	for (const Range& r : ranges_) pool_.tables().give(r.at, r.words);
	ranges_.clear(), rows_.clear();
}

void RowChoices::add(const KvSequence& s, uint32_t first, uint32_t n) {
	const uint32_t stride = s.table_pages() * 4, sets = sets_of(s), words = sets * stride;
	ranges_.reserve(ranges_.size() + 1);
	ranges_.push_back({pool_.tables().take(n * words), n * words});
	for (uint32_t i = 0; i < n; ++i)
		rows_.push_back({&s, first + i, {ranges_.back().at + i * words, sets == 1 ? 0 : stride, s.plan().chosen}});
}

const RowChoice* RowChoices::of(uint32_t row) const {
	const auto r = std::ranges::lower_bound(rows_, row, {}, &Row::row); // added in order
	return r == rows_.end() || r->row != row ? nullptr : &r->choice;
}

size_t RowChoices::plan(uint32_t l, StepTable& table) {
	std::vector<uint32_t> words;
	for (const Row& r : rows_) {
		const KvPlan& of = r.seq->plan();
		for (uint32_t h = 0; l >= of.chosen_from && h < sets_of(*r.seq); ++h)
			for (const PageRun& run : r.seq->runs(l)) {
				const uint32_t page = of.page[int(run.tier)], row = r.row * of.choices + h % of.choices;
				words.insert(words.end(), {row, run.n, page, r.seq->live_word(l, run.first) + h * r.seq->live_stride(),
				                           r.choice.live_word(run.first) + h * r.choice.stride,
				                           r.seq->position_word(l, h % of.n_heads, run.first),
				                           (run.first - r.seq->tier_first(run.tier)) * page, 0});
			}
	}
	n_work_ = uint32_t(words.size() / LIVE_WORDS);
	return table.put(words);
}

void RowChoices::enqueue(Backend& be, const View& bits, const Buffer& words, size_t at, uint32_t n_work) const {
	if (n_work) be.index_live(pool_.tables().view(), bits, table_view(words, at, n_work, LIVE_WORDS));
}

} // namespace kvrun
