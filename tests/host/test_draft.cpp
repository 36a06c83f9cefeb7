// Drafting: the look-up drafter against its definition, the length of drafts, and rows of several tokens in the books
// of a cache.
#include "engine/run/draft_lookup.h"
#include "tests/support/kv_sim.h"
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

namespace {

using Tokens = std::vector<uint32_t>;

// The definition: the tokens after the latest earlier occurrence of the longest suffix of 4, 3 or 2 tokens.
Tokens looked_up(const Tokens& text, size_t most) {
	for (size_t n = 4; n >= 2; --n)
		for (size_t end = text.size(); end-- > n;) {
			if (!std::equal(text.end() - ptrdiff_t(n), text.end(), text.begin() + ptrdiff_t(end - n))) continue;
			Tokens all(text);
			for (size_t i = 0; i < most; ++i) all.push_back(all[end + i]);
			return {all.begin() + ptrdiff_t(text.size()), all.end()};
		}
	return {};
}

} // namespace

TEST_CASE("draft: what is looked up is what followed the longest suffix the last time") {
	std::mt19937 random(7);
	for (const uint32_t letters : {1u, 2u, 3u, 8u, 40u, 5000u}) {
		CAPTURE(letters);
		LookupDrafter d;
		Tokens text;
		uint32_t found = 0, lost = 0;
		for (int i = 0; i < 700; ++i) {
			const bool again = text.size() > 40 && random() % 2;
			const size_t from = again ? random() % (text.size() - 20) : 0;
			Tokens next; // a new token, or one that occurred before
			if (again)
				next.assign(text.begin() + ptrdiff_t(from), text.begin() + ptrdiff_t(from + 1 + random() % 12));
			else
				next.push_back(random() % letters);
			d.accept(next);
			text.insert(text.end(), next.begin(), next.end());
			const size_t most = 1 + random() % 9;
			const Tokens want = looked_up(text, most);
			const auto got = d.draft(uint32_t(most));
			found += !want.empty();
			if (!std::ranges::equal(got, want)) ++lost; // runs whose table entries were overwritten
		}
		CHECK(lost * 50 <= found);
		if (letters <= 40) CHECK(found > 300);
	}
}

TEST_CASE("draft: nothing is looked up before anything has come twice, and a loop is drafted whole") {
	LookupDrafter d;
	CHECK(d.draft(4).empty());
	d.accept(Tokens{1, 2, 3, 4, 5});
	CHECK(d.draft(4).empty());
	d.accept(Tokens{1});
	CHECK(d.draft(4).empty()); // one token is too short a suffix
	d.accept(Tokens{2});
	CHECK(std::ranges::equal(d.draft(9), Tokens{3, 4, 5, 1, 2, 3, 4, 5, 1}));
	CHECK(d.draft(0).empty());
	CHECK(std::ranges::equal(d.draft(1), Tokens{3}));
}

// The entries of runs of 2, 3 and 4 tokens lie in one table, so a run may find the end that was just put there.
TEST_CASE("draft: nothing is looked up in texts where no token comes twice") {
	for (uint32_t seed = 0; seed < 1000; ++seed) {
		std::mt19937 random(seed);
		LookupDrafter d;
		size_t n = 0;
		for (uint32_t i = 0; i < 100; ++i) {
			d.accept(Tokens{i * 1000 + uint32_t(random() % 1000)});
			n += d.draft(1).size();
		}
		CAPTURE(seed);
		CHECK(n == 0);
	}
}

TEST_CASE("draft: drafts grow while they are accepted, and come rarer and rarer while they are not") {
	DraftLength grows(16);
	uint32_t longest = 0;
	for (int i = 0; i < 10; ++i) {
		const uint32_t n = grows.next();
		CHECK(n >= longest);
		longest = n;
		grows.verified(n, n);
	}
	CHECK(longest == 16);
	grows.verified(16, 4);
	CHECK(grows.next() == 4);

	DraftLength shrinks(16);
	uint32_t rows = 0;
	for (int step = 0; step < 1000; ++step) {
		const uint32_t n = shrinks.next();
		rows += n;
		if (n) shrinks.verified(n, 0);
	}
	CHECK(rows < 30); // of 1000 steps: rejected drafts cost almost nothing
	CHECK(rows > 10); // but drafts are tried again
	DraftLength none(0);
	CHECK(none.next() == 0);
}

TEST_CASE("draft: a step of several tokens, taken back in part or as a whole, leaves the books of single tokens") {
	const KvShape shape{2, 2, 64};
	for (const char* kv : {"fp16", "kivi2,recent_keep=8,flush=32", "turbo3/2", "logquant,W=10,k.group=32",
	                       "zipcache,flush=25", "streaming,sinks=4,recent=33"}) {
		INFO(std::string(kv));
		const KvPlan plan = make_plan(parse_policy(kv), shape);
		SimMemory one_memory(plan), many_memory(plan);
		KvCache one(plan, one_memory, 5), many(plan, many_memory, 5);
		const auto scores = [&](const KvCache& c) {
			std::vector<float> s;
			if (c.wants_scores()) s.assign(size_t(2) * 2 * c.n_f16_slots(), 1.f);
			return s;
		};
		const auto token = [&](KvCache& c) {
			c.begin_token(scores(c));
			c.copies_done();
			c.end_token();
		};
		std::mt19937 random(3);
		uint32_t longest = 0;
		while (one.n_tokens() < 300) {
			const uint32_t at = many.n_tokens(), n = many.step_tokens(1 + random() % 8), stay = 1 + random() % n;
			REQUIRE(n >= 1);
			longest = std::max(longest, n);
			many.begin_token(scores(many), n);
			if (random() % 4 == 0) { // none of it is accepted
				many.cancel_token();
				REQUIRE(many.n_tokens() == at);
				many.begin_token(scores(many), n);
			}
			for (uint32_t i = 1; i < n; ++i) CHECK(many.token_slot(0, 0, i) != many.token_slot(0, 0, i - 1));
			CHECK(many.position(0, Tier::F16, 0, many.token_slot(0, 0, n - 1)) == at + n - 1);
			many.copies_done();
			many.end_token();
			REQUIRE(many.exact_position(at + stay) == at + stay);
			many.truncate(at + stay);
			for (uint32_t i = 0; i < stay; ++i) token(one);
			REQUIRE(many.n_tokens() == one.n_tokens());
			for (const Tier t : kAllTiers) {
				REQUIRE(many.n_pages(0, t) == one.n_pages(0, t));
				for (uint32_t h = 0; h < 2; ++h) {
					REQUIRE(std::ranges::equal(many.live(1, t, h), one.live(1, t, h)));
					REQUIRE(many.positions(1, t, h) == one.positions(1, t, h));
				}
			}
			REQUIRE(many_memory.used_bytes() == one_memory.used_bytes());
		}
		CHECK(longest >= 6);
	}
}
