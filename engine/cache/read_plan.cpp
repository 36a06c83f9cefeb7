// Work lists of attention and scores.
#include "engine/cache/read_plan.h"
#include <algorithm>

namespace kvrun {
namespace {

// Work items as words.
template <class W> std::span<const uint32_t> words_of_work(const std::vector<W>& work) {
	static_assert(sizeof(W) % 4 == 0 && alignof(W) == 4);
	return {reinterpret_cast<const uint32_t*>(work.data()), work.size() * (sizeof(W) / 4)};
}

// Buffers are told apart by their ids: chunks of one pool stay in their places.
View chunk_of(const KvSequence& s, uint32_t chunk) { return s.pool().chunk(chunk); }

} // namespace

ReadPlan::Group& ReadPlan::group_of(const KvSequence& s, uint32_t l, const PageRun& r) {
	const Format& fmt = s.plan().layers[l].tier[int(r.tier)].fmt;
	const uint32_t page = s.plan().page[int(r.tier)];
	for (Group& g : open_)
		if (g.args.page == page && g.args.format == fmt && g.chunk == r.chunk) return g;
	Group& g = open_.emplace_back();
	g.chunk = r.chunk;
	g.args.format = fmt;
	g.args.page = page;
	g.args.k_codes = chunk_of(s, r.chunk[0]);
	g.args.v_codes = chunk_of(s, r.chunk[1]);
	if (fmt.k.bits < 16) g.args.k_params = chunk_of(s, r.chunk[2]);
	if (fmt.v.bits < 16) g.args.v_params = chunk_of(s, r.chunk[3]);
	if (fmt.v.bits < 16 && fmt.v.norm == Norm::SqrtMax) g.args.v_factors = chunk_of(s, r.chunk[4]);
	return g;
}

void ReadPlan::build(uint32_t l, std::span<const ReadRows> rows, uint32_t extra, StepTable& table) {
	open_.clear();
	n_rows_ = n_parts_ = 0;
	item_rows_ = rows.size() == 1 ? rows[0].n : 1;
	part_step_ = 0;
	for (const ReadRows& r : rows) n_rows_ += r.n;
	row_parts_at_ = table.take(size_t(n_rows_) * 2);
	const std::span<uint32_t> row_parts = table.at(row_parts_at_, size_t(n_rows_) * 2);
	for (const ReadRows& r : rows) {
		KV_ASSERT(r.n == 1 || rows.size() == 1);
		uint32_t part = n_parts_; // of the first of its rows
		for (const PageRun& run : r.seq->runs(l)) {
			Group& g = group_of(*r.seq, l, run);
			const bool balanced = r.seq->plan().layers[l].balanced;
			for (uint32_t at = 0; at < run.n; at += r.piece)
				g.work.push_back({.row = r.row,
				                  .part = part++,
				                  .n_pages = std::min(r.piece, run.n - at),
				                  .pages = r.seq->page_word(l, run.first + at),
				                  .live = r.seq->live_word(l, run.first + at),
				                  .live_stride = r.seq->live_stride(),
				                  .factors = r.seq->factor_word(l, run.first + at),
				                  .balance = balanced ? r.seq->balance_word(l) : 0});
			g.args.n_pages += run.n;
		}
		const uint32_t of_row = part - n_parts_ + extra;
		for (uint32_t i = 0; i < r.n; ++i) {
			row_parts[(r.row + i) * 2] = n_parts_ + i * of_row;
			row_parts[(r.row + i) * 2 + 1] = of_row;
		}
		n_parts_ += r.n * of_row;
		if (r.n > 1) part_step_ = of_row;
	}
	groups_.clear();
	n_work_ = 0;
	for (const Group& g : open_) n_work_ += uint32_t(g.work.size());
	work_at_ = table.take(size_t(n_work_) * kAttendWords);
	uint32_t first = 0;
	for (Group& g : open_) {
		g.args.first_work = first;
		g.args.n_work = uint32_t(g.work.size());
		std::ranges::copy(words_of_work(g.work),
		                  table.at(work_at_ + size_t(first) * kAttendWords, g.work.size() * kAttendWords).begin());
		first += g.args.n_work;
		groups_.push_back(g.args);
	}
}

KvRead ReadPlan::read(const KvPool& pool, const Buffer& words, const View& parts, uint32_t n_kv_heads) const {
	View p = parts;
	p.shape[0] = std::max(n_parts_, 1u);
	return {.groups = groups_,
	        .work = table_view(words, work_at_, std::max(n_work_, 1u), kAttendWords),
	        .tables = pool.tables().view(),
	        .balance = pool.balances().view(),
	        .row_parts = table_view(words, row_parts_at_, n_rows_, 2),
	        .parts = p,
	        .n_kv_heads = n_kv_heads,
	        .item_rows = item_rows_,
	        .part_step = part_step_};
}

void ScorePlan::build(uint32_t l, std::span<const ScoreRows> rows, StepTable& table) {
	struct Group {
		ScoreGroup args;
		uint32_t chunk;
		std::vector<ScoreWork> work;
	};
	std::vector<Group> open;
	n_work_ = 0;
	for (const ScoreRows& r : rows)
		for (const PageRun& run : r.seq->runs(l)) {
			if (run.tier != Tier::F16) continue;
			const uint32_t page = r.seq->plan().page[int(Tier::F16)];
			auto g = std::ranges::find_if(
			    open, [&](const Group& o) { return o.chunk == run.chunk[0] && o.args.page == page; });
			if (g == open.end()) {
				open.push_back({{.page = page, .k_codes = chunk_of(*r.seq, run.chunk[0]), .first_work = 0, .n_work = 0},
				                run.chunk[0],
				                {}});
				g = open.end() - 1;
			}
			for (uint32_t at = 0; at < run.n; at += r.piece, ++n_work_) // f16 pages are the first rows of a table
				g->work.push_back({.first = r.first,
				                   .n = r.n,
				                   .n_pages = std::min(r.piece, run.n - at),
				                   .pages = r.seq->page_word(l, run.first + at),
				                   .live = r.seq->live_word(l, run.first + at),
				                   .live_stride = r.seq->live_stride(),
				                   .score = r.seq->sums_word(l) + (run.first + at) * page,
				                   .score_stride = r.seq->sums_stride()});
			g->args.n_pages += run.n;
		}
	groups_.clear();
	work_at_ = table.take(size_t(n_work_) * kScoreWords);
	uint32_t first = 0;
	for (Group& g : open) {
		g.args.first_work = first;
		g.args.n_work = uint32_t(g.work.size());
		std::ranges::copy(words_of_work(g.work),
		                  table.at(work_at_ + size_t(first) * kScoreWords, g.work.size() * kScoreWords).begin());
		first += g.args.n_work;
		groups_.push_back(g.args);
	}
}

ScoreArgs ScorePlan::read(const KvPool& pool, const Buffer& words, const View& rows, uint32_t n_kv_heads) const {
	View score = pool.sums().view();
	score.type = DType::F32;
	return {.groups = groups_,
	        .work = table_view(words, work_at_, std::max(n_work_, 1u), kScoreWords),
	        .rows = rows,
	        .tables = pool.tables().view(),
	        .score = score,
	        .n_kv_heads = n_kv_heads};
}

} // namespace kvrun
