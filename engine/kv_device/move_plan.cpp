// What a device does to carry out the moves of one layer.
#include "engine/kv_device/move_plan.h"
#include <algorithm>

namespace kvrun {

std::vector<ChunkRows> lay_rows(const KvPool& pool, std::span<const SlotCell> cells, uint32_t n_kv, StepTable& table) {
	std::vector<ChunkRows> out;
	std::vector<std::pair<uint32_t, uint32_t>> keys; // of `out`: chunk, page
	const auto piece_of = [&](const SlotCell& c) {
		const std::pair key{c.slot.chunk, c.page};
		const auto at = std::ranges::find(keys, key);
		if (at != keys.end()) return size_t(at - keys.begin());
		keys.push_back(key);
		out.push_back({pool.chunk(c.slot.chunk), c.page, UINT32_MAX, 0, 0});
		return keys.size() - 1;
	};
	for (const SlotCell& c : cells) { // n is the end of the rows until all cells are in
		ChunkRows& p = out[piece_of(c)];
		p.first = std::min(p.first, c.row), p.n = std::max(p.n, c.row + 1);
	}
	for (ChunkRows& p : out) {
		p.n -= p.first;
		const size_t n = size_t(p.n) * n_kv * 2;
		p.at = table.take(n);
		std::ranges::fill(table.at(p.at, n), kSkip);
	}
	for (const SlotCell& c : cells) {
		const ChunkRows& p = out[piece_of(c)];
		const std::span<uint32_t> d = table.at(p.at + (size_t(c.row - p.first) * n_kv + c.head) * 2, 2);
		d[0] = c.slot.k, d[1] = c.slot.v;
	}
	return out;
}

void MovePlan::begin(uint32_t n_kv_heads, uint32_t tail) {
	cells_in_.clear(), cells_out_.clear(), loads_.clear(), stores_.clear(), blocks_.clear(), packs_.clear();
	sources_.clear(), leaving_.clear();
	n_kv_heads_ = n_kv_heads;
	rows_ = tail;
	next_pack_ = next_item_ = 0, started_ = false;
}

void MovePlan::add(const KvSequence& s, uint32_t l, const KvMoves& moves) {
	leaving_.emplace_back();
	if (moves.empty()) return;
	const uint32_t first_source = uint32_t(sources_.size());
	gather(s, l, moves);
	for (const KvBlockMove& b : moves.blocks) add_block(s, l, b, first_source);
	for (const KvMove& m : moves.packs) add_pack(s, l, m, first_source);
	add_stores(s, l, moves);
}

void MovePlan::end(const KvPool& pool, StepTable& table) {
	if (empty()) return;
	loads_ = lay_rows(pool, cells_in_, n_kv_heads_, table);
	stores_ = lay_rows(pool, cells_out_, n_kv_heads_, table);
	sources_at_ = table.put(sources_);
	const auto put = [&](const auto& work) {
		const size_t n = work.size() * sizeof(work[0]) / 4;
		return table.put({reinterpret_cast<const uint32_t*>(work.data()), n});
	};
	for (Block& b : blocks_) b.work_at = put(b.work);
	for (Pack& p : packs_) p.work_at = put(p.work);
}

// Turns sources into rows: tokens of a prompt's scratch keep theirs, f16 slots get consecutive rows after them. Kv
// heads with token sets of their own share rows, because each reads only its own part of a row.
void MovePlan::gather(const KvSequence& s, uint32_t l, const KvMoves& moves) {
	const std::span<const uint32_t> f16_pages = s.cache().pages(l, Tier::F16);
	const uint32_t page = s.plan().page[int(Tier::F16)];
	const size_t first_source = sources_.size();
	sources_.resize(first_source + moves.sources.size(), 0);
	std::vector<bool> placed(moves.sources.size(), false);
	std::vector<uint32_t> next(n_kv_heads_, rows_); // by kv head: its first unused row
	const auto place = [&](uint32_t head, uint32_t src, uint32_t n) {
		const auto [h0, h1] = heads_of(head, n_kv_heads_);
		for (uint32_t i = src; i < src + n; ++i) {
			if (placed[i]) continue; // packs may list tokens that a block listed before
			placed[i] = true;
			const uint32_t source = moves.sources[i];
			if (source & kFromScratch) {
				sources_[first_source + i] = source & ~kFromScratch;
				continue;
			}
			const uint32_t row = *std::max_element(next.begin() + h0, next.begin() + h1);
			sources_[first_source + i] = row;
			for (uint32_t h = h0; h < h1; ++h) {
				cells_in_.push_back({row, h, page, s.f16_slot(l, h, f16_pages[source / page], source % page)});
				next[h] = row + 1;
				if (!moves.positions.empty()) leaving_.back().push_back({h, row, moves.positions[i]});
			}
		}
	};
	for (const KvBlockMove& b : moves.blocks) place(b.head, b.src, b.n);
	for (const KvMove& m : moves.packs) place(m.head, m.src, m.n);
	rows_ = *std::max_element(next.begin(), next.end());
	std::ranges::sort(leaving_.back());
}

void MovePlan::add_block(const KvSequence& s, uint32_t l, const KvBlockMove& m, uint32_t first_source) {
	const Format& fmt = s.plan().layers[l].tier[int(m.tier)].fmt;
	const PageFormat& f = s.plan().block_format(l, m.tier);
	const KvPool::Addr a = s.pool().addr(m.block);
	auto b = std::ranges::find_if(blocks_, [&](const Block& o) { return o.args.format == fmt && o.chunk == a.chunk; });
	if (b == blocks_.end()) {
		blocks_.push_back(
		    {{.format = fmt, .sources = {}, .work = {}, .words = s.pool().chunk(a.chunk), .balance = {}}, a.chunk, {}});
		b = blocks_.end() - 1;
	}
	const bool balanced = fmt.k.prescale == Prescale::Balance;
	if (balanced) b->args.balance = s.pool().balances().view();
	b->work.push_back({.src = first_source + m.src,
	                   .n = m.n,
	                   .head = m.head,
	                   .k_params = f.k_params ? a.at + f.k_params_at : kSkip,
	                   .v_factors = f.v_params ? a.at + f.v_params_at : kSkip,
	                   .balance = balanced ? s.balance_word(l) : 0});
}

void MovePlan::add_pack(const KvSequence& s, uint32_t l, const KvMove& m, uint32_t first_source) {
	const KvPlan& plan = s.plan();
	const Format& fmt = plan.layers[l].tier[int(m.tier)].fmt;
	const LayerPlan& L = plan.layers[l];
	const PageFormat& own_format = plan.page_format(l, m.tier);
	const PageFormat& k_format = m.tier == Tier::Regular ? plan.page_format(L.k_codes_of, m.tier) : own_format;
	const PageFormat& v_format = m.tier == Tier::Regular ? plan.page_format(L.v_codes_of, m.tier) : own_format;
	const bool has_block = m.block != kNone;
	const PageFormat& block_format = has_block ? plan.block_format(l, m.tier) : own_format;
	const KvPool::Addr own = s.pool().addr(m.page), k = s.pool().addr(m.k_owner), v = s.pool().addr(m.v_owner);
	const KvPool::Addr block = has_block ? s.pool().addr(m.block) : own;
	const bool k_block = has_block && block_format.k_params > 0, factors = has_block && block_format.v_params > 0;
	const KvPool::Addr k_params = k_block ? block : own;
	const PageChunks chunk{k.chunk, v.chunk, k_params.chunk, own.chunk, block.chunk};
	const uint32_t page = plan.page[int(m.tier)];
	const bool balanced = fmt.k.prescale == Prescale::Balance;

	auto p = std::ranges::find_if(packs_, [&](const Pack& q) {
		return q.args.format == fmt && q.args.page == page && q.args.k_block == k_block && q.chunk == chunk;
	});
	if (p == packs_.end()) {
		Pack& n = packs_.emplace_back();
		n.chunk = chunk;
		n.args.format = fmt;
		n.args.page = page;
		n.args.k_block = k_block;
		n.args.k_codes = s.pool().chunk(chunk[0]);
		n.args.v_codes = s.pool().chunk(chunk[1]);
		n.args.k_params = s.pool().chunk(chunk[2]);
		n.args.v_params = s.pool().chunk(chunk[3]);
		if (balanced) n.args.balance = s.pool().balances().view();
		if (factors) n.args.v_factors = s.pool().chunk(chunk[4]);
		p = packs_.end() - 1;
	}
	p->work.push_back({.src = first_source + m.src,
	                   .n = m.n,
	                   .head = m.head,
	                   .slot = m.slot,
	                   .k_codes = m.k_owner == m.page ? k.at + k_format.k_codes_at : kSkip,
	                   .v_codes = m.v_owner == m.page ? v.at + v_format.v_codes_at : kSkip,
	                   .k_params = k_params.at + (k_block ? block_format : own_format).k_params_at,
	                   .v_params = own.at + own_format.v_params_at,
	                   .v_factors = factors ? block.at + block_format.v_params_at : 0,
	                   .balance = balanced ? s.balance_word(l) : 0});
}

void MovePlan::add_stores(const KvSequence& s, uint32_t l, const KvMoves& moves) {
	const uint32_t page = s.plan().page[int(Tier::F16)];
	for (const KvMove& m : moves.stores) {
		const auto [h0, h1] = heads_of(m.head, n_kv_heads_);
		for (uint32_t i = 0; i < m.n; ++i) {
			KV_ASSERT(moves.sources[m.src + i] & kFromScratch);
			for (uint32_t h = h0; h < h1; ++h)
				cells_out_.push_back(
				    {moves.sources[m.src + i] & ~kFromScratch, h, page, s.f16_slot(l, h, m.page, m.slot + i)});
		}
	}
}

bool MovePlan::enqueue_some(Backend& be, const Buffer& words, const KvRows& src, uint64_t most_tokens) {
	if (empty()) return true;
	const View sources = table_view(words, sources_at_, uint32_t(std::max<size_t>(sources_.size(), 1)));
	KV_ASSERT(src.first == 0 || (blocks_.empty() && packs_.empty())); // their sources count rows from 0
	if (!started_) {
		for (const ChunkRows& r : loads_)
			be.kv_load({src.k, src.v, src.first + r.first}, r.n, r.dst(words, n_kv_heads_));
		for (const Block& b : blocks_) {
			BlockArgs a = b.args;
			a.sources = sources;
			a.work = table_view(words, b.work_at, uint32_t(b.work.size()), BLOCK_WORDS);
			be.kv_block(src, a);
		}
		started_ = true;
	}
	for (uint64_t taken = 0; next_pack_ < packs_.size(); ++next_pack_, next_item_ = 0) {
		const Pack& p = packs_[next_pack_];
		PackArgs a = p.args;
		const size_t first = next_item_;
		for (; next_item_ < p.work.size() && taken < most_tokens; ++next_item_) {
			const PackWork& w = p.work[next_item_];
			taken += w.n;
			a.n_heads += w.head == kAllHeads ? size_t(w.n) * n_kv_heads_ : w.n;
		}
		if (const uint32_t n = uint32_t(next_item_ - first)) {
			a.sources = sources;
			a.work = table_view(words, p.work_at + first * PACK_WORDS, n, PACK_WORDS);
			be.kv_pack(src, a);
		}
		if (next_item_ < p.work.size()) return false;
	}
	for (const ChunkRows& r : stores_) be.kv_store({src.k, src.v, src.first + r.first}, r.n, r.dst(words, n_kv_heads_));
	return true;
}

} // namespace kvrun
