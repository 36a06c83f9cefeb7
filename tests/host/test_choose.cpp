// `auto` and `tuned:BITS`: bits go where they win most, budgets are kept, and what cannot be is refused.
#include "engine/core/error.h"
#include "engine/kv/choose.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

const KvShape kShape{4, 2, 64};

Choice choose(const char* text, uint64_t n, size_t budget, const Tuning* t = nullptr) {
	return choose_policy(parse_policy(text), kShape, t, n, budget);
}
double bits_of(const std::string& text) { return packed_bits(make_plan(parse_policy(text), kShape)); }
size_t bytes_of(const std::string& text, uint64_t n) {
	return bytes_at(make_plan(parse_policy(text), kShape), n).total();
}

// Keys of the last layer are all that matters.
Tuning last_keys() {
	Tuning t{std::vector<LayerCost>(4)};
	for (LayerCost& c : t.layers)
		for (int b = 1; b <= 4; ++b) c.k[b] = c.v[b] = 1e-6 * (5 - b);
	for (int b = 1; b <= 4; ++b) t.layers[3].k[b] = 1. / b;
	return t;
}

} // namespace

TEST_CASE("choose: bits of full pages count codes, norms and means") {
	CHECK(bits_of("fp16") == 16);
	CHECK(bits_of("kivi2") == doctest::Approx(3)); // a pair of halves for 32 codes
	// 2.5 of codes, a byte for the 64 channels of a head, and the halves of a mean for 128 tokens of keys; 8 bytes of
	// norms' scales
	CHECK(bits_of("turbo3/2") == doctest::Approx(2.5 + 8. / 64 + 16. / 128 / 2).epsilon(0.01));
	CHECK(bits_of("turbo3/2") <= 2.7);
}

TEST_CASE("choose: a budget of bits is kept, and spent where it wins most") {
	const Tuning t = last_keys();
	for (const double bits : {1.3, 1.8, 2.05, 2.5, 3.3, 4.0}) {
		CAPTURE(bits);
		const std::string text = assign_bits(t, kShape, bits);
		CHECK(bits_of(text) <= bits + 1e-6);
		CHECK(bits_of(text) > bits - 0.2); // the steps are one bit of eight sides
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		if (bits >= 2.05) CHECK(plan.layers[3].tier[int(Tier::Regular)].fmt.k.bits == 4);
		for (const LayerPlan& L : plan.layers) CHECK(L.tier[int(Tier::Regular)].fmt.k.bits >= (bits < 1.7 ? 1 : 2));
	}
	CHECK(choose("tuned:2.05", 100, 0, &t).policy.text == assign_bits(t, kShape, 2.05));
	CHECK(choose("tuned:2.05,recent=64,flush=64", 100, 0).policy.select.flush == 64);
	CHECK_THROWS_WITH_AS(assign_bits(t, kShape, 1.1), doctest::Contains("at least 1.20 bits"), Error);
}

TEST_CASE("choose: auto takes the best that fits, never evicts, and names what would be better") {
	const uint64_t n = 16384;
	CHECK(choose("auto", n, size_t(1) << 30).policy.name == "fp16");
	CHECK(choose("auto", n, bytes_of("fp16", n) - 1).policy.name == "rtn8");
	const Choice c = choose("auto", n, bytes_of("turbo3/2", n) * 11 / 10);
	CHECK(c.policy.name == "turbo");
	CHECK(bytes_of(c.policy.text, n) <= bytes_of("turbo3/2", n) * 11 / 10);
	CHECK(bits_of(c.policy.text) > 2.5);
	CHECK(c.why.find("would need") != std::string::npos);
	CHECK(c.why.find('\n') == std::string::npos);
	size_t before = SIZE_MAX;
	for (size_t budget = bytes_of("fp16", n); budget > bytes_of("turbo2/1", n) * 11 / 10; budget -= budget / 9) {
		const KvPlan plan = make_plan(choose("auto", n, budget).policy, kShape);
		CHECK(tokens_that_fit(plan, budget, n) == n);
		CHECK(plan.fill[int(Tier::Regular)] != (plan.keeps_all ? Fill::Group : Fill::None));
		CHECK(bytes_at(plan, n).total() <= before);
		before = bytes_at(plan, n).total();
	}
	CHECK_THROWS_WITH_AS(choose("auto", n, 1000), doctest::Contains("raise --kv-budget"), Error);
	CHECK(choose("kivi2", n, 0).policy.text == "kivi2"); // no choice: as it is
}

TEST_CASE("choose: names and options that cannot be are refused") {
	for (const char* text :
	     {"tuned:x", "tuned:", "tuned:0.5", "tuned:99", "tuned", "auto:2", "auto,grup=4", "auto,ratio=0.5"}) {
		CAPTURE(text);
		CHECK_THROWS_AS(parse_policy(text), Error);
	}
	CHECK(is_choice(parse_policy("auto,recent=64,flush=64")));
	CHECK(parse_policies("kivi2,tuned:2.3,auto").size() == 3);
	CHECK_THROWS_WITH_AS(make_plan(parse_policy("auto"), kShape), doctest::Contains("memory"), Error);
	const KvShape odd{4, 2, 40}; // blocks of 8 channels
	CHECK(choose_policy(parse_policy("tuned:2.5"), odd, nullptr, 100, 0).policy.name == "turbo");
}
