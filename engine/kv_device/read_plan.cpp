// Work lists of attention and scores.
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/fetch.h"
#include <algorithm>
#include <bit>
#include <tuple>

namespace kvrun {
namespace {

// Work items as words.
template <class W> std::span<const uint32_t> words_of_work(const std::vector<W>& work) {
	static_assert(sizeof(W) % 4 == 0 && alignof(W) == 4);
	return {reinterpret_cast<const uint32_t*>(work.data()), work.size() * (sizeof(W) / 4)};
}

// Numbers the work items of the groups and puts them into the table, group by group; sets their offset and count.
template <class Group, class Args>
std::pair<size_t, uint32_t> put_groups(std::vector<Group>& open, std::vector<Args>& groups, StepTable& table) {
	groups.clear();
	size_t n = 0, n_words = 0;
	for (Group& g : open) {
		g.args.first_work = uint32_t(n);
		g.args.n_work = uint32_t(g.work.size());
		n += g.work.size(), n_words += words_of_work(g.work).size();
		groups.push_back(g.args);
	}
	const size_t at = table.take(n_words);
	auto next = table.at(at, n_words).begin();
	for (const Group& g : open) next = std::ranges::copy(words_of_work(g.work), next).out;
	return {at, uint32_t(n)};
}

// Buffers are identified by their ids; chunks of a pool do not move.
View chunk_of(const KvSequence& s, uint32_t chunk) { return s.pool().chunk(chunk); }

} // namespace

ReadPlan::Group& ReadPlan::group_of(const KvSequence& s, uint32_t l, const PageRun& r, bool sparse) {
	const Format& fmt = s.plan().layers[l].tier[int(r.tier)].fmt;
	const uint32_t page = s.plan().page[int(r.tier)];
	for (Group& g : open_)
		if (g.args.page == page && g.args.format == fmt && g.args.sparse == sparse && g.chunk == r.chunk) return g;
	Group& g = open_.emplace_back();
	g.chunk = r.chunk;
	g.args.format = fmt;
	g.args.page = page, g.args.sparse = sparse;
	g.args.k_codes = chunk_of(s, r.chunk[0]);
	g.args.v_codes = chunk_of(s, r.chunk[1]);
	if (fmt.k.bits < 16) g.args.k_params = chunk_of(s, r.chunk[2]);
	if (fmt.v.bits < 16) g.args.v_params = chunk_of(s, r.chunk[3]);
	if (fmt.v.bits < 16 && fmt.v.prescale == Prescale::SqrtMax) g.args.v_factors = chunk_of(s, r.chunk[4]);
	return g;
}

// Adds the pages of a run, a piece at a time; `first`: words of its first page.
void ReadPlan::add_run(const ReadRows& r, uint32_t l, const PageRun& run, AttendWork first, uint32_t& part) {
	Group& g = group_of(*r.seq, l, run, /*sparse=*/r.choice != nullptr);
	if (r.seq->plan().layers[l].balanced) first.balance = r.seq->balance_word(l);
	if (g.work.empty()) g.work.reserve(ceil_div(run.n, r.piece));
	for (uint32_t at = 0; at < run.n; at += r.piece) {
		AttendWork w = first;
		w.part = part++;
		w.n_pages = std::min(r.piece, run.n - at);
		w.pages += at * 4, w.live += at * 4, w.factors += at;
		g.work.push_back(w);
	}
	g.args.n_pages += r.choice ? std::min(run.n, ceil_div(r.choice->most, g.args.page)) : run.n;
}

void ReadPlan::add_fetched(const ReadRows& r, uint32_t l, uint32_t& part) {
	const KvFetch& f = *r.seq->fetch();
	const auto add = [&](uint32_t chunk, uint32_t first, uint32_t n, AttendWork work) {
		work.row = r.row;
		add_run(r, l, {Tier::F16, {chunk, chunk, chunk, chunk, chunk}, first, n}, work, part);
	};
	if (r.fetched == Fetched::Speculative) {
		AttendWork own{};
		own.pages = f.speculative_page_word(l);
		own.live = f.speculative_live_word(l);
		own.live_stride = f.speculative_live_stride();
		add(f.speculative_chunk(l), 0, 1, own);
	}
	for (const KvFetch::Run& run : f.runs(l)) {
		const uint32_t end = std::min(run.first + run.n, f.n_pages());
		if (run.first >= end) continue;
		AttendWork work{};
		work.pages = f.page_word(l, run.first);
		work.live = f.live_word(run.first);
		add(run.chunk, run.first, end - run.first, work);
	}
}

void ReadPlan::build(uint32_t l, std::span<const ReadRows> rows, uint32_t extra, StepTable& table) {
	open_.clear();
	n_rows_ = n_parts_ = 0;
	item_rows_ = rows.size() == 1 ? rows[0].n : 1;
	part_step_ = most_parts_ = 0;
	bool all_have = extra == 0;
	for (const ReadRows& r : rows) n_rows_ += r.n;
	shares_.assign(n_rows_, {});
	row_parts_at_ = table.take(size_t(n_rows_) * 2);
	const std::span<uint32_t> row_parts = table.at(row_parts_at_, size_t(n_rows_) * 2);
	for (const ReadRows& r : rows) {
		KV_ASSERT(r.n == 1 || rows.size() == 1);
		uint32_t part = n_parts_; // first part of its first row
		uint32_t f16_parts = 0;
		bool f16_ends = false;
		const auto end_f16 = [&] { // once, behind the f16 tier: what is fetched is in f16, too
			if (f16_ends) return;
			f16_ends = true;
			if (r.fetched != Fetched::None) add_fetched(r, l, part);
			f16_parts = part - n_parts_;
		};
		for (PageRun run : r.seq->runs(l)) {
			run.n = pages_seen(run, r.mask);
			if (!run.n) continue;
			const bool by_row = r.mask && run.tier == Tier::F16;
			if (run.tier != Tier::F16) end_f16();
			const bool masked = run.tier != Tier::F16 && r.fetched != Fetched::None && r.seq->fetch()->n_fetched();
			const uint32_t page = run.first - r.seq->tier_first(run.tier);
			add_run(r, l, run,
			        {.row = r.row,
			         .part = 0,
			         .n_pages = 0,
			         .pages = r.seq->page_word(l, run.first),
			         .live = masked     ? r.seq->fetch()->mask_word(l, run.tier, page)
			                 : r.choice ? r.choice->live_word(run.first)
			                 : by_row   ? r.mask->live_word(l, run.first)
			                            : r.seq->live_word(l, run.first),
			         .live_stride = masked     ? r.seq->fetch()->mask_stride()
			                        : r.choice ? r.choice->stride
			                        : by_row   ? r.mask->stride
			                                   : r.seq->live_stride(),
			         .factors = r.seq->factor_word(l, run.first),
			         .balance = 0},
			        part);
		}
		end_f16();
		const uint32_t of_row = part - n_parts_ + extra;
		most_parts_ = std::max(most_parts_, of_row);
		all_have = all_have && of_row;
		for (uint32_t i = 0; i < r.n; ++i) {
			row_parts[(r.row + i) * 2] = n_parts_ + i * of_row;
			row_parts[(r.row + i) * 2 + 1] = of_row;
		}
		if (r.n == 1) shares_[r.row] = {n_parts_, of_row, f16_parts, 0};
		n_parts_ += r.n * of_row;
		if (r.n > 1) part_step_ = of_row;
	}
	if (!all_have) most_parts_ = 0;
	std::tie(work_at_, n_work_) = put_groups(open_, groups_, table);
}

uint32_t ReadPlan::build_rows(uint32_t l, const KvSequence& seq, StepTable& table) {
	open_.clear();
	n_rows_ = 0, n_parts_ = 0, item_rows_ = 1, part_step_ = most_parts_ = 0;
	row_parts_at_ = table.take(2); // not read
	uint32_t n = 0, part = 0;
	for (const PageRun& run : seq.runs(l)) {
		const std::span<const uint32_t> live = seq.cache().live(l, run.tier, 0);
		for (uint32_t page = run.first; page < run.first + run.n; ++page) { // an item each: decoding is the work
			AttendWork w{};
			w.row = n;
			w.pages = seq.page_word(l, page), w.live = seq.live_word(l, page);
			add_run({&seq, 0, 1, 1}, l, {run.tier, run.chunk, page, 1}, w, part);
			for (const uint32_t bits : live.subspan(size_t(page - seq.tier_first(run.tier)) * 4, 4))
				n += uint32_t(std::popcount(bits));
		}
	}
	std::tie(work_at_, n_work_) = put_groups(open_, groups_, table);
	return n;
}

KvRead ReadPlan::read(const KvPool& pool, const Buffer& words, const View& parts, uint32_t n_kv_heads) const {
	View p = parts;
	p.shape[0] = std::max(n_parts_, 1u);
	return {.groups = groups_,
	        .work = table_view(words, work_at_, std::max(n_work_, 1u), ATTEND_WORDS),
	        .tables = pool.tables().view(),
	        .balance = pool.balances().view(),
	        .row_parts = table_view(words, row_parts_at_, std::max(n_rows_, 1u), 2),
	        .parts = p,
	        .n_kv_heads = n_kv_heads,
	        .item_rows = item_rows_,
	        .part_step = part_step_,
	        .most_parts = most_parts_};
}

void ScorePlan::build(uint32_t l, std::span<const ScoreRows> rows, StepTable& table) {
	struct Group {
		ScoreGroup args;
		uint32_t chunk, rope_chunk; // of latents or keys; of rotated keys, else 0
		std::vector<ScoreWork> work;
		std::vector<std::pair<const KvSequence*, const RowChoice*>> added;
		// Rows with choices of their own add to the same sums, which items of a group must not.
		bool has_other(const ScoreRows& r) const {
			return std::ranges::any_of(added, [&](const auto& a) { return a.first == r.seq && a.second != r.choice; });
		}
	};
	std::vector<Group> open;
	for (const ScoreRows& r : rows)
		for (PageRun run : r.seq->runs(l)) {
			run.n = pages_seen(run, r.mask);
			if (run.tier != Tier::F16 || !run.n) continue;
			const uint32_t page = r.seq->plan().page[int(Tier::F16)];
			const Saliency saliency = r.seq->plan().policy.select.saliency();
			const bool latent = r.seq->plan().shape.rope_dim != 0;
			const uint32_t rope_chunk = latent ? run.chunk[1] : 0;
			bool apart = true;
			auto g = std::ranges::find_if(open, [&](const Group& o) {
				const bool same = o.chunk == run.chunk[0] && o.rope_chunk == rope_chunk && o.args.page == page &&
				                  o.args.saliency == saliency;
				const bool other = same && o.has_other(r);
				apart &= !other;
				return same && !other;
			});
			if (g == open.end()) {
				open.push_back({{.page = page,
				                 .k_codes = chunk_of(*r.seq, run.chunk[0]),
				                 .first_work = 0,
				                 .n_work = 0,
				                 .saliency = saliency,
				                 .v_codes = latent ? chunk_of(*r.seq, rope_chunk) : View(),
				                 .apart = apart},
				                run.chunk[0],
				                rope_chunk,
				                {},
				                {}});
				g = open.end() - 1;
			}
			g->added.push_back({r.seq, r.choice});
			for (uint32_t at = 0; at < run.n; at += r.piece) // f16 pages come first in a table
				g->work.push_back({.first = r.first,
				                   .n = r.n,
				                   .n_pages = std::min(r.piece, run.n - at),
				                   .pages = r.seq->page_word(l, run.first + at),
				                   .live = r.choice ? r.choice->live_word(run.first + at)
				                           : r.mask ? r.mask->live_word(l, run.first + at)
				                                    : r.seq->live_word(l, run.first + at),
				                   .live_stride = r.choice ? r.choice->stride
				                                  : r.mask ? r.mask->stride
				                                           : r.seq->live_stride(),
				                   .score = r.seq->sums_word(l) + (run.first + at) * page,
				                   .score_stride = r.seq->sums_stride()});
			g->args.n_pages += run.n;
		}
	std::tie(work_at_, n_work_) = put_groups(open, groups_, table);
}

void WeighPlan::build(uint32_t l, std::span<const WeighRows> rows, StepTable& table) {
	struct Group {
		WeighGroup args;
		PageChunks chunk; // of keys; with latent attention of rotated keys too, which lie where others have values
		std::vector<WeighWork> work;
	};
	std::vector<Group> open;
	const auto add = [&](const WeighRows& r, const PageRun& run, WeighWork first) {
		const KvPlan& plan = r.seq->plan();
		const Format& f = plan.layers[l].tier[int(run.tier)].fmt;
		const bool latent = plan.shape.rope_dim != 0;
		const Quant v = latent ? f.v : Quant();
		const uint32_t page = plan.page[int(run.tier)];
		PageChunks chunk = run.chunk;
		if (!latent) chunk[1] = chunk[3] = 0;
		auto g = std::ranges::find_if(open, [&](const Group& o) {
			return o.args.k == f.k && o.args.v == v && o.args.page == page && o.chunk == chunk;
		});
		if (g == open.end()) {
			open.push_back({{.k = f.k, .page = page, .k_codes = chunk_of(*r.seq, chunk[0]), .v = v}, chunk, {}});
			g = open.end() - 1;
			if (f.k.bits < 16) g->args.k_params = chunk_of(*r.seq, chunk[2]);
			if (latent) g->args.v_codes = chunk_of(*r.seq, chunk[1]);
			if (latent && v.bits < 16) g->args.v_params = chunk_of(*r.seq, chunk[3]);
		}
		first.row = r.row;
		first.weight_stride = r.seq->fetch()->n_weights();
		first.balance = plan.layers[l].balanced ? r.seq->balance_word(l) : 0;
		for (uint32_t at = 0; at < run.n; at += r.piece) {
			WeighWork w = first;
			w.n_pages = std::min(r.piece, run.n - at);
			w.pages += at * 4, w.live += at * 4, w.weight += at * page;
			g->work.push_back(w);
		}
		g->args.n_pages += run.n;
	};
	for (const WeighRows& r : rows) {
		const KvFetch& f = *r.seq->fetch();
		for (const PageRun& run : r.seq->runs(l)) {
			if (run.tier == Tier::F16) continue;
			const uint32_t page = run.first - r.seq->tier_first(run.tier);
			WeighWork w{};
			w.pages = r.seq->page_word(l, run.first);
			w.live = r.masked ? f.mask_word(l, run.tier, page) : r.seq->live_word(l, run.first);
			w.live_stride = r.masked ? f.mask_stride() : r.seq->live_stride();
			w.weight = r.weights + f.packed().first(run.tier) + page * r.seq->plan().page[int(run.tier)];
			add(r, run, w);
		}
		for (const KvFetch::Run& run : f.runs(l)) {
			const uint32_t end = std::min(run.first + run.n, f.weighed_pages());
			if (!r.masked || run.first >= end) continue;
			WeighWork w{};
			w.pages = f.page_word(l, run.first);
			w.live = f.live_word(run.first);
			w.weight = r.weights + f.packed().n() + run.first * r.seq->plan().page[int(Tier::F16)];
			add(r, {Tier::F16, {run.chunk, run.chunk, run.chunk, run.chunk, run.chunk}, run.first, end - run.first}, w);
		}
	}
	std::tie(work_at_, n_work_) = put_groups(open, groups_, table);
}

WeighArgs WeighPlan::read(const KvPool& pool, const Buffer& words, const View& weight, uint32_t n_kv_heads) const {
	return {.groups = groups_,
	        .weight = weight,
	        .work = table_view(words, work_at_, std::max(n_work_, 1u), WEIGH_WORDS),
	        .tables = pool.tables().view(),
	        .balance = pool.balances().view(),
	        .n_kv_heads = n_kv_heads};
}

ScoreArgs ScorePlan::read(const KvPool& pool, const Buffer& words, const View& rows, uint32_t n_kv_heads) const {
	View score = pool.sums().view();
	score.type = DType::F32;
	return {.groups = groups_,
	        .work = table_view(words, work_at_, std::max(n_work_, 1u), SCORE_WORDS),
	        .rows = rows,
	        .tables = pool.tables().view(),
	        .score = score,
	        .n_kv_heads = n_kv_heads};
}

} // namespace kvrun
