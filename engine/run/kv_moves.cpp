// What a device does to carry out the moves of one layer: gather f16 slots, compute parameter blocks, pack, store.
#include "engine/run/kv_state.h"
#include <algorithm>

namespace kvrun {
namespace {

// Calls f(first head, end of heads) of a move.
std::pair<uint32_t, uint32_t> heads_of(uint32_t head, uint32_t n_kv_heads) {
	return head == kAllHeads ? std::pair{0u, n_kv_heads} : std::pair{head, head + 1};
}

// Rows of an `at` table that go to or come from one chunk.
struct Piece {
	uint32_t chunk, first = UINT32_MAX, last = 0;
};
struct Cell { // one head of one row: a place in the f16 tier
	uint32_t row, head, chunk, k, v;
};

} // namespace

// Turns cells into one dispatch per chunk, over the rows from the first to the last cell there; the rest is skipped.
template <class Out> static void lay_rows(const std::vector<Cell>& cells, uint32_t n_kv, StepTable& table, Out&& out) {
	std::vector<Piece> pieces;
	const auto piece_of = [&](uint32_t chunk) {
		for (size_t i = 0; i < pieces.size(); ++i)
			if (pieces[i].chunk == chunk) return i;
		pieces.push_back({chunk});
		return pieces.size() - 1;
	};
	for (const Cell& c : cells) {
		Piece& p = pieces[piece_of(c.chunk)];
		p.first = std::min(p.first, c.row), p.last = std::max(p.last, c.row);
	}
	std::vector<size_t> at;
	for (const Piece& p : pieces) {
		const size_t n = size_t(p.last - p.first + 1) * n_kv * 2;
		at.push_back(table.take(n));
		std::ranges::fill(table.at(at.back(), n), kSkip);
		out(p.chunk, p.first, p.last - p.first + 1, at.back());
	}
	for (const Cell& c : cells) {
		const size_t i = piece_of(c.chunk);
		const std::span<uint32_t> d = table.at(at[i] + (size_t(c.row - pieces[i].first) * n_kv + c.head) * 2, 2);
		d[0] = c.k, d[1] = c.v;
	}
}

void MovePlan::build(const KvState& s, uint32_t l, const KvMoves& moves, uint32_t tail, StepTable& table) {
	loads_.clear(), stores_.clear(), blocks_.clear(), packs_.clear();
	n_kv_heads_ = s.plan_.shape.n_kv_heads;
	f16_page_ = s.plan_.page[int(Tier::Recent)];
	rows_ = tail;
	if (moves.empty()) return;
	gather(s, l, moves, tail, table);
	for (const KvBlockMove& b : moves.blocks) add_block(s, l, b);
	for (const KvMove& m : moves.packs) add_pack(s, l, m);
	add_stores(s, l, moves, table);

	const auto put = [&](std::span<const uint32_t> words) {
		const size_t at = table.take(words.size());
		std::ranges::copy(words, table.at(at, words.size()).begin());
		return at;
	};
	sources_at_ = put(sources_);
	for (Block& b : blocks_) b.work_at = put(b.work);
	for (Pack& p : packs_) p.work_at = put(p.work), p.factors_at = put(p.factors);
}

// Sources become rows: tokens of the prompt's scratch as they are, f16 slots one after the other behind them. Kv heads
// with token sets of their own share rows, for each reads only its own part of a row.
void MovePlan::gather(const KvState& s, uint32_t l, const KvMoves& moves, uint32_t tail, StepTable& table) {
	const std::span<const uint32_t> f16_pages = s.cache_.pages(l, Tier::Recent);
	sources_.assign(moves.sources.size(), 0);
	std::vector<bool> placed(moves.sources.size(), false);
	std::vector<uint32_t> next(n_kv_heads_, tail); // by kv head: its first unused row
	std::vector<Cell> cells;
	const auto place = [&](uint32_t head, uint32_t src, uint32_t n) {
		const auto [h0, h1] = heads_of(head, n_kv_heads_);
		for (uint32_t i = src; i < src + n; ++i) {
			if (placed[i]) continue; // packs may list what a block listed before
			placed[i] = true;
			const uint32_t source = moves.sources[i];
			if (source & kFromScratch) {
				sources_[i] = source & ~kFromScratch;
				continue;
			}
			const uint32_t row = *std::max_element(next.begin() + h0, next.begin() + h1);
			sources_[i] = row;
			for (uint32_t h = h0; h < h1; ++h) {
				const KvState::F16Slot at = s.f16_slot(h, f16_pages[source / f16_page_], source % f16_page_);
				cells.push_back({row, h, at.chunk, at.k, at.v});
				next[h] = row + 1;
			}
		}
	};
	for (const KvBlockMove& b : moves.blocks) place(b.head, b.src, b.n);
	for (const KvMove& m : moves.packs) place(m.head, m.src, m.n);
	rows_ = *std::max_element(next.begin(), next.end());
	lay_rows(cells, n_kv_heads_, table, [&](uint32_t chunk, uint32_t first, uint32_t n, size_t at) {
		loads_.push_back({s.pool_.chunk(chunk), first, n, at});
	});
}

void MovePlan::add_block(const KvState& s, uint32_t l, const KvBlockMove& m) {
	const TierPlan& tier = s.plan_.layers[l].tier[int(m.tier)];
	const KvPool::Addr a = s.pool_.addr(m.block);
	const PageFormat& f = s.plan_.formats[a.format];
	Block& b = blocks_.emplace_back(); // few: a compression has one block per tier
	b.args = {tier.fmt, m.head, {}, {}, s.pool_.chunk(a.chunk), {}};
	b.work = {m.src, m.n, f.k_params ? a.at + f.k_params_at : kSkip, f.v_params ? a.at + f.v_params_at : kSkip};
}

void MovePlan::add_pack(const KvState& s, uint32_t l, const KvMove& m) {
	const TierPlan& tier = s.plan_.layers[l].tier[int(m.tier)];
	const auto format_of = [&](const KvPool::Addr& a) -> const PageFormat& { return s.plan_.formats[a.format]; };
	const KvPool::Addr own = s.pool_.addr(m.page), k = s.pool_.addr(m.k_owner), v = s.pool_.addr(m.v_owner);
	const bool has_block = m.block != kNone;
	const KvPool::Addr block = has_block ? s.pool_.addr(m.block) : own;
	const bool k_block = has_block && format_of(block).k_params > 0, factors = has_block && format_of(block).v_params > 0;
	const KvPool::Addr k_params = k_block ? block : own;
	const std::array<uint32_t, 5> chunk{k.chunk, v.chunk, k_params.chunk, own.chunk, block.chunk};

	auto p = std::find_if(packs_.begin(), packs_.end(), [&](const Pack& q) {
		return q.args.format == tier.fmt && q.args.k_block == k_block && q.chunk == chunk;
	});
	if (p == packs_.end()) {
		Pack& n = packs_.emplace_back();
		n.chunk = chunk;
		n.args.format = tier.fmt;
		n.args.page = s.plan_.page[int(m.tier)];
		n.args.k_block = k_block;
		n.args.k_codes = s.pool_.chunk(chunk[0]);
		n.args.v_codes = s.pool_.chunk(chunk[1]);
		n.args.k_params = s.pool_.chunk(chunk[2]);
		n.args.v_params = s.pool_.chunk(chunk[3]);
		if (factors) n.args.v_factors = s.pool_.chunk(chunk[4]);
		p = packs_.end() - 1;
	}
	const uint32_t work[] = {m.src,
							 m.n,
							 m.head,
							 m.slot,
							 m.k_owner == m.page ? k.at + format_of(k).k_codes_at : kSkip,
							 m.v_owner == m.page ? v.at + format_of(v).v_codes_at : kSkip,
							 k_params.at + format_of(k_params).k_params_at,
							 own.at + format_of(own).v_params_at};
	p->work.insert(p->work.end(), std::begin(work), std::end(work));
	p->factors.push_back(factors ? block.at + format_of(block).v_params_at : 0);
}

void MovePlan::add_stores(const KvState& s, uint32_t, const KvMoves& moves, StepTable& table) {
	std::vector<Cell> cells;
	for (const KvMove& m : moves.stores) {
		const auto [h0, h1] = heads_of(m.head, n_kv_heads_);
		for (uint32_t i = 0; i < m.n; ++i) {
			KV_ASSERT(moves.sources[m.src + i] & kFromScratch);
			for (uint32_t h = h0; h < h1; ++h) {
				const KvState::F16Slot at = s.f16_slot(h, m.page, m.slot + i);
				cells.push_back({moves.sources[m.src + i] & ~kFromScratch, h, at.chunk, at.k, at.v});
			}
		}
	}
	lay_rows(cells, n_kv_heads_, table, [&](uint32_t chunk, uint32_t first, uint32_t n, size_t at) {
		stores_.push_back({s.pool_.chunk(chunk), first, n, at});
	});
}

void MovePlan::enqueue(Backend& be, const Buffer& words, const PromptKv& src) const {
	const auto dst = [&](const Rows& r) {
		return KvDst{r.pool, r.pool, view(words, r.at * 4, DType::U32, r.n, n_kv_heads_, 2), f16_page_};
	};
	const View sources = view(words, sources_at_ * 4, DType::U32, uint32_t(std::max<size_t>(sources_.size(), 1)));
	for (const Rows& r : loads_) be.kv_load({src.k, src.v, r.first}, r.n, dst(r));
	for (const Block& b : blocks_) {
		BlockArgs a = b.args;
		a.sources = sources;
		a.work = view(words, b.work_at * 4, DType::U32, uint32_t(b.work.size() / 4), 4);
		be.kv_block(src, a);
	}
	for (const Pack& p : packs_) {
		PackArgs a = p.args;
		a.sources = sources;
		a.work = view(words, p.work_at * 4, DType::U32, uint32_t(p.work.size() / 8), 8);
		if (a.v_factors) a.factors = view(words, p.factors_at * 4, DType::U32, uint32_t(p.factors.size()));
		be.kv_pack(src, a);
	}
	for (const Rows& r : stores_) be.kv_store({src.k, src.v, r.first}, r.n, dst(r));
}

} // namespace kvrun
