// Saves and loads a cache, except the contents of its pages.
#include "engine/core/round.h"
#include "engine/kv_host/books.h"
#include "engine/kv_host/cache_state.h"
#include <algorithm>

namespace kvrun {
namespace {

void write_counts(BookWriter& out, const KvCounts& c) {
	out.number(c.n_tokens), out.number(c.judged), out.number(c.sinks), out.number(c.kept), out.number(c.recent);
	for (int t = 0; t < kTiers; ++t)
		out.number(c.waiting[t]), out.number(c.packed[t]), out.number(c.pages[t]), out.number(c.blocks[t]);
}

void at_most(const char* what, uint32_t x, uint64_t most) {
	if (x > most) fail(Code::Format, "{} is {}, at most {} is possible", what, x, most);
}

KvCounts read_counts(BookReader& in, const KvPlan& plan, uint32_t n) {
	const Select& s = plan.policy.select;
	KvCounts c;
	c.n_tokens = in.number("n_tokens", kFromScratch - 1);
	if (c.n_tokens != n) fail(Code::Format, "n_tokens is {}, expected {}", c.n_tokens, n);
	c.judged = in.number("judged", n);
	c.sinks = in.count("sinks", std::min(s.sinks, n));
	c.kept = in.count("kept", n);
	const uint64_t window = plan.keeps_all ? n : std::min<uint64_t>(n, uint64_t(s.recent_keep) + s.flush);
	c.recent = in.count("recent", uint32_t(window));
	if (s.rank == Rank::LogWindow) // half of those that a flush looks at, and they take room in the window
		at_most("kept", c.kept, std::min<uint64_t>((s.flush + 1) / 2, window - c.recent));
	for (int t = 0; t < kTiers; ++t) {
		const bool group = t != int(Tier::F16) && plan.fill[t] == Fill::Group;
		const bool stored = t == int(Tier::F16) || plan.fill[t] != Fill::None;
		c.waiting[t] = in.count("waiting", group ? plan.page[t] - 1 : 0);
		c.packed[t] = in.count("packed", stored ? n : 0);
		c.pages[t] = in.count("pages", stored ? n : 0);
		const bool blocks = plan.fill[t] == Fill::Block;
		if (!blocks && stored) at_most("pages", c.pages[t], ceil_div(n, plan.page[t]));
		c.blocks[t] = in.count("blocks", blocks ? c.pages[t] : 0);
		if (blocks && c.pages[t] && !c.blocks[t]) fail(Code::Format, "{} pages lie in no block", c.pages[t]);
		if (stored && uint64_t(c.pages[t]) * plan.page[t] < c.packed[t])
			fail(Code::Format, "{} pages do not hold {} tokens", c.pages[t], c.packed[t]);
	}
	if (c.packed[int(Tier::F16)] != c.f16())
		fail(Code::Format, "tokens in f16 are {}, expected {}", c.packed[int(Tier::F16)], c.f16());
	return c;
}

} // namespace

std::vector<std::byte> KvCache::save_books() const {
	const State& s = *s_;
	KV_ASSERT(!s.in_prompt && !s.in_token && s.copies.empty());
	BookWriter out;
	write_counts(out, s.counts);
	out.number(s.scored_rows), out.number(s.newest_scores), out.number(s.exact_from), out.number(s.floor_pages);
	for (const Tier t : kAllTiers) {
		uint32_t before = 0;
		for (const uint32_t block : s.sets[0][0].page_block(t)) // the same in all sets
			out.difference(block, std::exchange(before, block));
	}
	for (const auto& group : s.sets)
		for (const TokenSet& set : group) set.write(out);
	return out.take();
}

KvCache KvCache::load_books(const KvPlan& plan, PagePool& pool, uint64_t seed, std::span<const std::byte> bytes,
                            uint32_t n_tokens) {
	BookReader in(bytes);
	KvCache cache(plan, pool, seed);
	State& s = *cache.s_;
	const KvCounts c = read_counts(in, plan, n_tokens);
	s.scored_rows = in.count("scored_rows", uint32_t(c.n_tokens));
	s.newest_scores = in.count("newest_scores", 1);
	s.exact_from = in.count("exact_from", n_tokens);
	// What truncate() takes away has not been judged: it is in the window, or a sink.
	const uint32_t sinks_left = std::min(c.sinks, s.exact_from), goes = n_tokens - s.exact_from;
	if (goes > uint64_t(c.recent) + (c.sinks - sinks_left))
		fail(Code::Format, "exact_from is {} of {} tokens, {} of them in the window", s.exact_from, n_tokens, c.recent);
	s.floor_pages = in.count("floor_pages", c.pages[int(Tier::F16)]);
	std::array<std::vector<uint32_t>, kTiers> page_block;
	for (int t = 0; t < kTiers; ++t) {
		if (!c.blocks[t]) continue;
		uint32_t block = 0;
		for (uint32_t p = 0; p < c.pages[t]; ++p)
			page_block[size_t(t)].push_back(block = uint32_t(in.difference(block, "block of a page", c.blocks[t] - 1)));
	}
	for (auto& group : s.sets)
		for (TokenSet& set : group) set.read(in, c, page_block, s.scored_rows);
	if (in.left()) fail(Code::Format, "{} bytes follow the last token set", in.left());
	s.reserve(c, uint32_t(c.n_tokens));
	s.commit(c);
	return cache;
}

} // namespace kvrun
