// What a device does to carry out the moves of one layer: gather f16 slots, compute parameter blocks, pack, store.
#include "engine/cache/plans.h"
#include <algorithm>

namespace kvrun {

std::pair<uint32_t, uint32_t> heads_of(uint32_t head, uint32_t n_kv_heads) {
	return head == kAllHeads ? std::pair{0u, n_kv_heads} : std::pair{head, head + 1};
}

std::vector<ChunkRows> lay_rows(const KvPool& pool, std::span<const SlotCell> cells, uint32_t n_kv, StepTable& table) {
	std::vector<ChunkRows> out;
	std::vector<uint32_t> chunks; // of `out`
	const auto piece_of = [&](uint32_t chunk) {
		for (size_t i = 0; i < chunks.size(); ++i)
			if (chunks[i] == chunk) return i;
		chunks.push_back(chunk);
		out.push_back({pool.chunk(chunk), UINT32_MAX, 0, 0});
		return chunks.size() - 1;
	};
	for (const SlotCell& c : cells) { // n is the end of the rows until all cells are in
		ChunkRows& p = out[piece_of(c.slot.chunk)];
		p.first = std::min(p.first, c.row), p.n = std::max(p.n, c.row + 1);
	}
	for (ChunkRows& p : out) {
		p.n -= p.first;
		const size_t n = size_t(p.n) * n_kv * 2;
		p.at = table.take(n);
		std::ranges::fill(table.at(p.at, n), kSkip);
	}
	for (const SlotCell& c : cells) {
		const ChunkRows& p = out[piece_of(c.slot.chunk)];
		const std::span<uint32_t> d = table.at(p.at + (size_t(c.row - p.first) * n_kv + c.head) * 2, 2);
		d[0] = c.slot.k, d[1] = c.slot.v;
	}
	return out;
}

void MovePlan::build(const KvState& s, uint32_t l, const KvMoves& moves, uint32_t tail, StepTable& table) {
	loads_.clear(), stores_.clear(), blocks_.clear(), packs_.clear();
	n_kv_heads_ = s.plan().shape.n_kv_heads;
	f16_page_ = s.plan().page[int(Tier::Recent)];
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
	const std::span<const uint32_t> f16_pages = s.cache().pages(l, Tier::Recent);
	sources_.assign(moves.sources.size(), 0);
	std::vector<bool> placed(moves.sources.size(), false);
	std::vector<uint32_t> next(n_kv_heads_, tail); // by kv head: its first unused row
	std::vector<SlotCell> cells;
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
				cells.push_back({row, h, s.f16_slot(h, f16_pages[source / f16_page_], source % f16_page_)});
				next[h] = row + 1;
			}
		}
	};
	for (const KvBlockMove& b : moves.blocks) place(b.head, b.src, b.n);
	for (const KvMove& m : moves.packs) place(m.head, m.src, m.n);
	rows_ = *std::max_element(next.begin(), next.end());
	loads_ = lay_rows(s.pool(), cells, n_kv_heads_, table);
}

void MovePlan::add_block(const KvState& s, uint32_t l, const KvBlockMove& m) {
	const TierPlan& tier = s.plan().layers[l].tier[int(m.tier)];
	const KvPool::Addr a = s.pool().addr(m.block);
	const PageFormat& f = s.plan().formats[a.format];
	Block& b = blocks_.emplace_back(); // few: a compression has one block per tier
	b.args = {tier.fmt, m.head, {}, {}, s.pool().chunk(a.chunk), {}};
	if (tier.fmt.k.norm == Norm::Balance) b.args.balance = s.balance(l);
	b.work = {m.src, m.n, f.k_params ? a.at + f.k_params_at : kSkip, f.v_params ? a.at + f.v_params_at : kSkip};
}

void MovePlan::add_pack(const KvState& s, uint32_t l, const KvMove& m) {
	const TierPlan& tier = s.plan().layers[l].tier[int(m.tier)];
	const auto format_of = [&](const KvPool::Addr& a) -> const PageFormat& { return s.plan().formats[a.format]; };
	const KvPool::Addr own = s.pool().addr(m.page), k = s.pool().addr(m.k_owner), v = s.pool().addr(m.v_owner);
	const bool has_block = m.block != kNone;
	const KvPool::Addr block = has_block ? s.pool().addr(m.block) : own;
	const bool k_block = has_block && format_of(block).k_params > 0,
	           factors = has_block && format_of(block).v_params > 0;
	const KvPool::Addr k_params = k_block ? block : own;
	const PageChunks chunk{k.chunk, v.chunk, k_params.chunk, own.chunk, block.chunk};

	auto p = std::find_if(packs_.begin(), packs_.end(), [&](const Pack& q) {
		return q.args.format == tier.fmt && q.args.k_block == k_block && q.chunk == chunk;
	});
	if (p == packs_.end()) {
		Pack& n = packs_.emplace_back();
		n.chunk = chunk;
		n.args.format = tier.fmt;
		n.args.page = s.plan().page[int(m.tier)];
		n.args.k_block = k_block;
		n.args.k_codes = s.pool().chunk(chunk[0]);
		n.args.v_codes = s.pool().chunk(chunk[1]);
		n.args.k_params = s.pool().chunk(chunk[2]);
		n.args.v_params = s.pool().chunk(chunk[3]);
		if (tier.fmt.k.norm == Norm::Balance) n.args.balance = s.balance(l);
		if (factors) n.args.v_factors = s.pool().chunk(chunk[4]);
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
	std::vector<SlotCell> cells;
	for (const KvMove& m : moves.stores) {
		const auto [h0, h1] = heads_of(m.head, n_kv_heads_);
		for (uint32_t i = 0; i < m.n; ++i) {
			KV_ASSERT(moves.sources[m.src + i] & kFromScratch);
			for (uint32_t h = h0; h < h1; ++h)
				cells.push_back({moves.sources[m.src + i] & ~kFromScratch, h, s.f16_slot(h, m.page, m.slot + i)});
		}
	}
	stores_ = lay_rows(s.pool(), cells, n_kv_heads_, table);
}

void MovePlan::enqueue(Backend& be, const Buffer& words, const PromptKv& src) const {
	const auto dst = [&](const ChunkRows& r) {
		return KvDst{r.pool, r.pool, view(words, r.at * 4, DType::U32, r.n, n_kv_heads_, 2), f16_page_};
	};
	const View sources = view(words, sources_at_ * 4, DType::U32, uint32_t(std::max<size_t>(sources_.size(), 1)));
	for (const ChunkRows& r : loads_) be.kv_load({src.k, src.v, r.first}, r.n, dst(r));
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
	for (const ChunkRows& r : stores_) be.kv_store({src.k, src.v, r.first}, r.n, dst(r));
}

} // namespace kvrun
