// KvCache: calls out of order are errors and change nothing.
#include "engine/core/error.h"
#include "tests/support/kv_sim.h"
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("cache: misuse is refused") {
	const KvPlan plan = make_plan(parse_policy("mikv"), {4, 2, 64});
	SimMemory memory(plan);
	Sim s(memory, 1);
	s.decode(64);
	REQUIRE(s.cache.wants_scores());
	CHECK_THROWS_AS(s.cache.begin_token({}), Error); // a ranked flush without scores
	s.cache.begin_prompt(3);
	CHECK_THROWS_AS(s.cache.begin_prompt(3), Error);
	CHECK_THROWS_AS(s.cache.end_prompt(), Error); // before prompt_moves() of all layers
	CHECK_THROWS_AS(s.cache.prompt_moves(1, {}, {}), Error);
	CHECK_THROWS_AS(s.cache.begin_token({}), Error);
	s.cache.reset(); // in the middle of a prompt
	CHECK(memory.used_bytes() == 0);
	s.prompt(10);
	s.verify();
}
