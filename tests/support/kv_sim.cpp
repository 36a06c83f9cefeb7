// A device made of lists: executes the moves of a KvCache, and compares the cache's views with the lists.
#include "tests/support/kv_sim.h"
#include "engine/core/error.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

#define SIM_CHECK(cond, ...)                                                                                           \
	do {                                                                                                               \
		if (!(cond)) throw std::runtime_error(fmt::format(#cond ": " __VA_ARGS__));                                    \
	} while (0)

uint32_t SimMemory::alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) {
	const uint32_t id = inner.alloc(layer, words, table_bytes);
	if (id == kNone) return id;
	if (page.contains(id) && page[id].owner != SimPage::kFree) broken = fmt::format("page {} handed out twice", id);
	const uint32_t H = plan.shape.n_kv_heads;
	page[id] = {.layer = layer, .words = words, .table_bytes = table_bytes, .pos = {}, .covers = {}, .block = {}};
	page[id].pos.assign(H, std::vector<uint32_t>(128, kNone));
	page[id].covers.resize(H);
	page[id].block.assign(H, kNone);
	return id;
}

void SimMemory::share(uint32_t id) noexcept {
	if (!page.contains(id) || page[id].owner == SimPage::kFree) {
		broken = "a page that nobody has was shared";
		return;
	}
	page[id].owner = SimPage::kNobody;
	inner.share(id);
}

void SimMemory::free(uint32_t id) noexcept {
	const auto at = page.find(id);
	if (at == page.end() || at->second.owner == SimPage::kFree) {
		broken = "a page that nobody has was freed";
		return;
	}
	at->second.owner = SimPage::kNobody; // the remaining owner may write to it
	if (!inner.shared(id)) at->second = {.owner = SimPage::kFree, .pos = {}, .covers = {}, .block = {}};
	inner.free(id);
}

Sim::Sim(Sim& other, int id)
    : memory(other.memory), plan(other.plan), id(id), cache(other.cache.fork()), scored(other.scored),
      slot_scores_(other.slot_scores_) {}

// Comes first on a device: shared pages are copied before they are written to.
void Sim::copy_pages() {
	for (const PageCopy& c : cache.copies()) {
		SimPage& to = memory.page.at(c.to);
		const SimPage& from = memory.page.at(c.from);
		SIM_CHECK(to.layer == c.layer && from.layer == c.layer && to.words == c.words && from.words == c.words,
		          "copy of page {} to {}", c.from, c.to);
		to.pos = from.pos, to.covers = from.covers, to.block = from.block;
	}
	cache.copies_done();
}

float Sim::attention(uint32_t l, uint32_t h, uint32_t row, uint32_t token) {
	uint64_t z = (uint64_t(l * 31 + h) << 48) ^ (uint64_t(row) << 24) ^ token;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return float((z >> 40) % 64) / 64; // sums and halves of sums are exact
}

float& Sim::slot_score(uint32_t l, uint32_t h, uint32_t slot) {
	auto& row = slot_scores_[l * plan.shape.n_kv_heads + h];
	if (row.size() <= slot) row.resize(slot + 1);
	return row[slot];
}

// The token of a source, on the device.
uint32_t Sim::source(uint32_t l, uint32_t h, uint32_t src, uint32_t first, uint32_t n_new) const {
	if (src & kFromScratch) {
		const uint32_t i = src & ~kFromScratch;
		SIM_CHECK(i < n_new, "scratch token {} of {}", i, n_new);
		return first + i;
	}
	const uint32_t page = plan.page[int(Tier::F16)];
	const auto pages = cache.pages(l, Tier::F16);
	SIM_CHECK(src / page < pages.size(), "f16 slot {} of {} pages", src, pages.size());
	const uint32_t pos = memory.page.at(pages[src / page]).pos[h][src % page];
	SIM_CHECK(pos != kNone, "f16 slot {} was never written", src);
	return pos;
}

void Sim::write(uint32_t l, uint32_t h, const KvMove& m, uint32_t i, uint32_t pos) {
	SimPage& p = memory.page.at(m.page);
	const PageFormat& f = plan.page_format(l, m.tier);
	SIM_CHECK(p.layer == l && f.words == p.words && p.table_bytes == plan.table_bytes(l), "page {} of layer {}", m.page,
	          p.layer);
	SIM_CHECK(p.owner == id || p.owner == SimPage::kNobody, "page {} belongs to sequence {}", m.page, p.owner);
	SIM_CHECK(!memory.shared(m.page), "page {} is shared and written", m.page);
	p.owner = id;
	SIM_CHECK(m.slot + i < f.page, "slot {} of {}", m.slot + i, f.page);
	uint32_t& slot = p.pos[h][m.slot + i];
	SIM_CHECK(m.tier == Tier::F16 || slot == kNone, "packed slot {} of page {} written twice", m.slot + i, m.page);
	slot = pos;
}

// Blocks, packs, stores: the order given in plan.h.
void Sim::run(uint32_t l, const KvMoves& m, uint32_t first, uint32_t n_new) {
	const uint32_t H = plan.shape.n_kv_heads;
	auto each_head = [&](uint32_t head, auto f) {
		for (uint32_t h = 0; h < H; ++h)
			if (head == kAllHeads || head == h) f(h);
	};
	for (const KvBlockMove& b : m.blocks)
		each_head(b.head, [&](uint32_t h) {
			SimPage& p = memory.page.at(b.block);
			SIM_CHECK(p.layer == l && plan.block_format(l, b.tier).words == p.words && p.table_bytes == 0 &&
			              p.covers[h].empty() && !memory.shared(b.block),
			          "block {}", b.block);
			p.owner = id;
			for (uint32_t i = 0; i < b.n; ++i) p.covers[h].insert(source(l, h, m.sources.at(b.src + i), first, n_new));
		});
	for (const KvMove& k : m.packs) {
		const Fill fill = plan.fill[int(k.tier)];
		SIM_CHECK(k.tier != Tier::F16 && k.n > 0, "pack of {}", k.n);
		SIM_CHECK(fill != Fill::Group || (k.slot == 0 && k.n == plan.page[int(k.tier)]),
		          "a group is a page: slot {} n {}", k.slot, k.n);
		SIM_CHECK((fill == Fill::Block) == (k.block != kNone), "block {}", k.block);
		each_head(k.head, [&](uint32_t h) {
			for (uint32_t i = 0; i < k.n; ++i) {
				const uint32_t pos = source(l, h, m.sources.at(k.src + i), first, n_new);
				write(l, h, k, i, pos);
				if (k.block != kNone)
					SIM_CHECK(memory.page.at(k.block).covers[h].count(pos), "token {} is not in its block", pos);
			}
			memory.page.at(k.page).block[h] = k.block;
		});
		// Shared codes: the owner's page holds the same tokens in the same slots already.
		for (uint32_t owner : {k.k_owner, k.v_owner})
			SIM_CHECK(memory.page.at(owner).pos == memory.page.at(k.page).pos, "page {} and the owner of its codes {}",
			          k.page, owner);
	}
	for (const KvMove& k : m.stores)
		each_head(k.head, [&](uint32_t h) {
			SIM_CHECK(k.tier == Tier::F16 && k.n > 0, "store of {}", k.n);
			for (uint32_t i = 0; i < k.n; ++i) {
				SIM_CHECK(m.sources.at(k.src + i) & kFromScratch, "a store from an f16 slot");
				write(l, h, k, i, source(l, h, m.sources[k.src + i], first, n_new));
			}
		});
}

void Sim::prompt(uint32_t n) {
	const uint32_t first = cache.n_tokens(), H = plan.shape.n_kv_heads;
	const uint32_t n_slots = cache.n_f16_slots();
	cache.begin_prompt(n);
	copy_pages();
	const std::vector<uint32_t> rows(cache.probe_rows().begin(), cache.probe_rows().end());
	SIM_CHECK(cache.n_tokens() == first && cache.n_f16_slots() == n_slots, "views changed in a prompt");
	prompt_rows.emplace_back();
	for (uint32_t r : rows) prompt_rows.back().push_back(first + r), scored.insert(first + r);
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) {
		std::vector<float> fresh, slots;
		if (plan.ranked()) {
			fresh.resize(size_t(H) * n), slots.resize(size_t(H) * n_slots);
			for (uint32_t h = 0; h < H; ++h) {
				for (uint32_t r : rows)
					for (uint32_t i = 0; i <= r; ++i) fresh[size_t(h) * n + i] += attention(l, h, first + r, first + i);
				const auto pos = cache.positions(l, Tier::F16, h);
				for (uint32_t s = 0; s < n_slots; ++s) {
					if (pos[s] == kNone) continue;
					slots[size_t(h) * n_slots + s] = slot_score(l, h, s);
					for (uint32_t r : rows) slots[size_t(h) * n_slots + s] += attention(l, h, first + r, pos[s]);
				}
			}
		}
		run(l, cache.prompt_moves(l, fresh, slots), first, n);
	}
	slot_scores_.assign(slot_scores_.size(), {});
	cache.end_prompt();
	SIM_CHECK(cache.n_tokens() == first + n, "{} tokens", cache.n_tokens());
}

void Sim::decode(uint32_t n) {
	const uint32_t H = plan.shape.n_kv_heads, L = plan.shape.n_layers;
	for (uint32_t step = 0; step < n; ++step) {
		const uint32_t pos = cache.n_tokens(), n_slots = cache.n_f16_slots();
		std::vector<float> slots;
		const bool due = cache.flush_due();
		if (cache.wants_scores()) {
			slots.resize(size_t(L) * H * n_slots);
			for (uint32_t l = 0; l < L; ++l)
				for (uint32_t h = 0; h < H; ++h)
					for (uint32_t s = 0; s < n_slots; ++s)
						slots[(size_t(l) * H + h) * n_slots + s] = slot_score(l, h, s);
			slot_scores_.assign(size_t(L) * H, {});
		}
		cache.begin_token(slots);
		copy_pages();
		if (cache.token_scores()) scored.insert(pos);
		for (uint32_t l = 0; l < L; ++l) {
			const KvMoves& m = cache.token_moves(l);
			SIM_CHECK(due || m.empty(), "moves without a flush");
			SIM_CHECK(m.stores.empty(), "a decoded token is stored by its own op");
			run(l, m, pos, 0);
			for (uint32_t h = 0; h < H; ++h) {
				const uint32_t slot = cache.token_slot(l, h), page = plan.page[int(Tier::F16)];
				const KvMove own{.tier = Tier::F16,
				                 .head = h,
				                 .src = 0,
				                 .n = 1,
				                 .page = cache.pages(l, Tier::F16)[slot / page],
				                 .slot = slot % page,
				                 .block = kNone,
				                 .k_owner = 0,
				                 .v_owner = 0};
				write(l, h, own, 0, pos);
				if (!cache.token_scores()) continue;
				const auto at = cache.positions(l, Tier::F16, h);
				for (uint32_t s = 0; s < at.size(); ++s)
					if (at[s] != kNone) slot_score(l, h, s) += attention(l, h, pos, at[s]);
			}
		}
		cache.end_token();
	}
}

void Sim::cancelled_token() {
	if (cache.wants_scores()) return;
	cache.begin_token();
	copy_pages();
	cache.cancel_token();
}

void Sim::verify() {
	SIM_CHECK(memory.broken.empty(), "{}", memory.broken);
	const uint32_t n = cache.n_tokens();
	const bool evicts = !plan.keeps_all && plan.fill[int(Tier::Regular)] == Fill::None;
	std::set<uint32_t> mine; // ids of pages and blocks
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l)
		for (uint32_t h = 0; h < plan.shape.n_kv_heads; ++h) {
			std::vector<uint8_t> found(n, 0);
			for (Tier t : kAllTiers) {
				const uint32_t page = plan.page[int(t)];
				const auto pos = cache.positions(l, t, h);
				const auto ids = cache.pages(l, t), live = cache.live(l, t, h), blocks = cache.blocks(l, t);
				SIM_CHECK(ids.size() == cache.n_pages(l, t) && live.size() == ids.size() * 4 &&
				              pos.size() == ids.size() * page,
				          "view sizes");
				SIM_CHECK(blocks.size() == (plan.fill[int(t)] == Fill::Block ? ids.size() : 0), "{} blocks",
				          blocks.size());
				for (uint32_t p = 0; p < ids.size(); ++p) {
					const SimPage& there = memory.page.at(ids[p]);
					SIM_CHECK(there.layer == l && (there.owner == id || there.owner == SimPage::kNobody),
					          "page {} of layer {}, sequence {}", ids[p], l, there.owner);
					if (h == 0) SIM_CHECK(mine.insert(ids[p]).second, "page {} is in two places", ids[p]);
					if (!blocks.empty()) mine.insert(blocks[p]);
					SIM_CHECK(blocks.empty() || there.block[h] == blocks[p], "block of page {}", ids[p]);
					for (uint32_t s = 0; s < 128; ++s) {
						const bool bit = live[p * 4 + s / 32] >> s % 32 & 1;
						const uint32_t at = s < page ? pos[p * page + s] : kNone;
						SIM_CHECK(bit == (at != kNone), "live bit {} of page {}", s, p);
						if (!bit) continue;
						SIM_CHECK(there.pos[h][s] == at, "slot {} of page {} holds {}, not {}", s, p, there.pos[h][s],
						          at);
						SIM_CHECK(at < n && !found[at]++, "token {} of layer {} head {} twice", at, l, h);
					}
				}
			}
			SIM_CHECK(evicts || std::count(found.begin(), found.end(), 1) == n, "tokens missing");
			const std::vector<uint8_t> tiers = cache.tiers(l, h);
			for (uint32_t i = 0; i < n; ++i)
				SIM_CHECK((tiers[i] == 3) == !found[i], "token {} says tier {}", i, tiers[i]);
		}
	// Bytes: the cache reports the bytes that the pool handed out for these pages, plus the balancers.
	size_t bytes = 0;
	for (uint32_t p : mine) {
		const SimPage& page = memory.page.at(p);
		bytes += size_t(page.words) * 4 + page.table_bytes;
	}
	for (const LayerPlan& L : plan.layers) bytes += L.balanced ? plan.shape.n_kv_heads * plan.shape.head_dim * 2 : 0;
	const KvBytes reported = cache.bytes();
	const size_t pages = reported.total() - reported.fetch; // fetching is not part of the cache's moves
	SIM_CHECK(pages == bytes, "reports {} bytes, has {}", pages, bytes);
}

// ---- the reference

void Reference::add(uint32_t pos) { (pos < plan.policy.select.sinks ? sinks : recent).push_back({pos}); }

void Reference::score_row(uint32_t row) {
	for (auto* list : {&sinks, &kept, &recent})
		for (Tok& t : *list) {
			if (t.pos > row) continue;
			double a = Sim::attention(l, h, row, t.pos);
			if (!plan.policy.select.per_head) { // the mean over the kv heads
				a = 0;
				for (uint32_t i = 0; i < plan.shape.n_kv_heads; ++i)
					a += Sim::attention(l, i, row, t.pos) / plan.shape.n_kv_heads;
			}
			t.score += a;
			++t.seen;
		}
}

bool Reference::full() const {
	const Select& s = plan.policy.select;
	if (plan.keeps_all) return false;
	return recent.size() + (s.rank == Rank::LogWindow ? kept.size() : 0) >= s.recent_keep + s.flush;
}

void Reference::judge(size_t leaving) {
	const Select& s = plan.policy.select;
	const bool scored = s.rank == Rank::ScoreSum || s.rank == Rank::ScoreMean || s.rank == Rank::KeyLength;
	const bool in_f16 = scored && plan.policy.salient.k.bits == 16 && plan.policy.salient.v.bits == 16;
	std::vector<Tok> pool;
	if (s.rank == Rank::LogWindow || in_f16) pool = kept, kept.clear();
	pool.insert(pool.end(), recent.begin(), recent.begin() + leaving);
	recent.erase(recent.begin(), recent.begin() + leaving);
	judged += leaving;
	std::set<uint32_t> best;
	if (s.rank == Rank::LogWindow)
		for (size_t i = 0; i < pool.size(); i += 2) best.insert(pool[i].pos);
	if (scored) {
		double want = s.budget ? s.budget : 1e18;
		if (s.ratio > 0) want = std::min(want, std::nearbyint(s.ratio * double(in_f16 ? judged : leaving)));
		std::vector<Tok> order = pool;
		auto value = [&](const Tok& t) { return s.rank == Rank::ScoreSum ? t.score : t.score / std::max(1u, t.seen); };
		std::sort(order.begin(), order.end(), [&](const Tok& a, const Tok& b) {
			return value(a) > value(b) || (value(a) == value(b) && a.pos > b.pos);
		});
		for (size_t i = 0; i < order.size() && double(i) < want; ++i) best.insert(order[i].pos);
	}
	size_t n_better = 0, n_rest = 0;
	for (const Tok& t : pool) {
		if (!best.count(t.pos))
			gone[int(Tier::Regular)].push_back(t.pos), ++n_rest;
		else if (s.rank == Rank::LogWindow || in_f16)
			kept.push_back(t);
		else
			gone[int(Tier::Salient)].push_back(t.pos), ++n_better;
	}
	if (n_rest) runs[int(Tier::Regular)].push_back(n_rest);
	if (n_better) runs[int(Tier::Salient)].push_back(n_better);
}

void Reference::prompt(uint32_t n_new, const std::vector<uint32_t>& rows) {
	const bool ranked = plan.ranked();
	for (uint32_t i = 0; i < n_new; ++i) {
		if (!ranked && full()) judge(recent.size() - plan.policy.select.recent_keep);
		add(n++);
	}
	if (!ranked) return;
	for (uint32_t r : rows) score_row(r);
	const Select& s = plan.policy.select;
	if (recent.size() > s.recent_keep + s.flush) judge(recent.size() - s.recent_keep);
}

void Reference::decode(bool scores) {
	if (full()) judge(recent.size() - plan.policy.select.recent_keep);
	add(n++);
	if (scores) score_row(n - 1);
}

std::vector<uint8_t> Reference::tiers() const {
	std::vector<uint8_t> out(n, 0);
	for (const Tok& t : kept) out[t.pos] = plan.ranked();
	for (int t : {int(Tier::Salient), int(Tier::Regular)}) {
		size_t stored = gone[t].size();
		if (plan.fill[t] == Fill::Group) stored -= stored % plan.page[t]; // the rest waits
		for (size_t i = 0; i < stored; ++i) out[gone[t][i]] = plan.fill[t] == Fill::None ? 3 : uint8_t(t);
	}
	return out;
}

} // namespace kvrun
