// Books of a cache in a file: what contradicts itself is refused.
#include "engine/core/error.h"
#include "tests/support/kv_sim.h"
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("cache: books whose counts contradict each other are refused") {
	// Where numbers stand, as long as each is one byte: n_tokens, judged, sinks, kept, recent; waiting, packed, pages,
	// blocks of each tier; rows with scores, whether the newest is one, exact_from, ..
	constexpr size_t kKept = 3, kRecent = 4, kF16Packed = 6, kF16Pages = 7, kRegularPages = 15, kRegularBlocks = 16,
	                 kExactFrom = 19;
	struct Edit {
		const char* policy;
		std::vector<std::pair<size_t, uint8_t>> bytes;
		const char* said;
	};
	const std::vector<Edit> edits = {
	    {"kivi2,recent_keep=8,flush=32", {{kExactFrom, 0}}, "exact_from is 0 of 100 tokens"},
	    {"kivi2,recent_keep=8,flush=32", {{kF16Pages, 99}}, "pages is 99, at most 4 is possible"},
	    {"zipcache,flush=25", {{kRegularBlocks, 0}}, "pages lie in no block"},
	    {"logquant,recent=10,flush=40", {{kKept, 49}, {kRecent, 1}, {kF16Packed, 50}}, "kept is 49, at most"}};
	for (const Edit& e : edits) {
		CAPTURE(e.policy);
		const KvPlan plan = make_plan(parse_policy(e.policy), {1, 1, 64});
		SimMemory memory(plan);
		Sim sim(memory, 1);
		sim.decode(100);
		std::vector<std::byte> books = sim.cache.save_books();
		CHECK(KvCache::load_books(plan, memory, 1, books, 100).n_tokens() == 100);
		const auto refused = [&] {
			try {
				KvCache::load_books(plan, memory, 1, books, 100);
			} catch (const Error& error) { return std::string(error.what()); }
			return std::string();
		};
		REQUIRE((books[0] == std::byte(100) && plan.fill[int(Tier::Regular)] != Fill::None));
		REQUIRE(books[kRegularPages] != std::byte(0));
		for (const auto& [at, value] : e.bytes) books[at] = std::byte(value);
		CHECK_MESSAGE(refused().find(e.said) != std::string::npos, refused());
		books[0] = std::byte(99);
		CHECK(refused() == "n_tokens is 99, expected 100");
	}
}

TEST_CASE("cache: books that name a token twice are refused") {
	const KvPlan plan = make_plan(parse_policy("fp16"), {1, 1, 64});
	SimMemory memory(plan);
	Sim sim(memory, 1);
	sim.decode(2);
	std::vector<std::byte> books = sim.cache.save_books();
	CHECK(KvCache::load_books(plan, memory, 1, books, 2).n_tokens() == 2);
	// They end with position and slot of each token, as differences, stored doubled: 0 0, 1 1.
	const std::byte two{2}, zero{0};
	REQUIRE(books.size() > 4);
	const std::span<std::byte> tokens = std::span(books).last(4);
	REQUIRE((tokens[0] == zero && tokens[1] == zero && tokens[2] == two && tokens[3] == two));
	tokens[0] = two, tokens[2] = zero; // position 1 twice
	try {
		KvCache::load_books(plan, memory, 1, books, 2);
		FAIL("was read without an error");
	} catch (const Error& e) {
		CHECK(e.code == Code::Format);
		CHECK(std::string_view(e.what()) == "token 1 is there twice");
	}
}
