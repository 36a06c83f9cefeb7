// `auto` and `tuned:BITS`: bits go where they gain most, budgets are kept, impossible requests are refused.
#include "engine/core/error.h"
#include "engine/kv_host/choose.h"
#include "engine/kv_host/counts.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <random>

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

// Only the keys of the last layer matter.
Tuning last_keys() {
	Tuning t{std::vector<LayerCost>(4)};
	for (int i = 0; i < kNSideFormats; ++i) {
		const double cost = (i < kEightBits && kSideFormats[i].uniform ? 2. : 1.) / kSideFormats[i].bits;
		for (LayerCost& c : t.layers) c.k[i] = c.v[i] = 1e-6 * cost;
		t.layers[3].k[i] = cost;
	}
	return t;
}

// Costs that fall with the bits, by a factor of 2 to 12 per step; for both kinds of codes.
Tuning random_tuning(uint32_t n_layers, uint32_t seed) {
	std::mt19937 random(seed);
	std::uniform_real_distribution<double> factor(2, 12);
	Tuning t{std::vector<LayerCost>(n_layers)};
	for (LayerCost& c : t.layers)
		for (SideCost* cost : {&c.k, &c.v}) {
			double now[2] = {1 / factor(random), 1 / factor(random)};
			for (int i = 0; i < kNSideFormats; ++i) {
				double& x = now[kSideFormats[i].uniform];
				(*cost)[i] = i == kEightBits ? std::min(now[0], now[1]) : x;
				x /= factor(random);
			}
		}
	return t;
}

// Sum of the costs of a policy's formats.
double cost_of(const std::string& text, const Tuning& t, const KvShape& shape) {
	const KvPlan plan = make_plan(parse_policy(text), shape);
	const auto side = [](const SideCost& cost, const Quant& q) {
		for (int i = 0; i < kNSideFormats; ++i)
			if (kSideFormats[i].bits == q.bits && kSideFormats[i].uniform == (q.scale != Scale::Codebook))
				return cost[i];
		FAIL("a format that is no candidate");
		return 0.;
	};
	double sum = 0;
	for (size_t l = 0; l < t.layers.size(); ++l) {
		const Format& f = plan.layers[l].tier[int(Tier::Regular)].fmt;
		sum += side(t.layers[l].k, f.k) + side(t.layers[l].v, f.v);
	}
	return sum;
}

} // namespace

TEST_CASE("choose: bits of full pages count codes, norms and means") {
	CHECK(bits_of("fp16") == 16);
	CHECK(bits_of("kivi2") == doctest::Approx(3)); // a pair of halves for 32 codes
	// 2.5 bits of codes, a byte for the 64 channels of a head, and half a mean for 128 tokens of keys; 8 bytes for the
	// norms' scales
	CHECK(bits_of("turbo3/2") == doctest::Approx(2.5 + 8. / 64 + 16. / 128 / 2).epsilon(0.01));
	CHECK(bits_of("turbo3/2") <= 2.7);
}

TEST_CASE("choose: a budget of bits is kept, and spent where it wins most") {
	const Tuning t = last_keys();
	for (const double bits : {1.3, 1.8, 2.05, 2.5, 3.3, 4.0, 4.5, 5.5, 6.7, 8.0}) {
		CAPTURE(bits);
		const std::string text = assign_bits(t, kShape, bits);
		CHECK(bits_of(text) <= bits + 1e-6);
		// A step is one bit of one of eight sides, and four bits from 4 bits on.
		CHECK(bits_of(text) > bits - (bits < 3 ? 0.2 : 0.55));
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		if (bits >= 2.05) CHECK(plan.layers[3].tier[int(Tier::Regular)].fmt.k.bits >= 4);
		for (const LayerPlan& L : plan.layers) CHECK(L.tier[int(Tier::Regular)].fmt.k.bits >= (bits < 1.7 ? 1 : 2));
	}
	CHECK(choose("tuned:2.05", 100, 0, &t).policy.text == assign_bits(t, kShape, 2.05));
	CHECK(choose("tuned:2.05,recent=64,flush=64", 100, 0).policy.select.flush == 64);
	CHECK_THROWS_WITH_AS(assign_bits(t, kShape, 1.1), doctest::Contains("at least 1.13 bits"), Error);
}

TEST_CASE("choose: auto takes the best that fits, never evicts, and names what would be better") {
	const uint64_t n = 16384;
	CHECK(choose("auto", n, size_t(1) << 30).policy.name == "fp16");
	const Choice eight = choose("auto", n, bytes_of("fp16", n) - 1);
	CHECK(bits_of(eight.policy.text) == bits_of("turbo8"));
	CHECK(eight.why.find("fp16 would need") != std::string::npos);
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
	const Tuning t = random_tuning(4, 1);
	const Choice measured = choose("auto", n, bytes_of("turbo3/2", n), &t);
	CHECK(measured.kld == doctest::Approx(cost_of(measured.policy.text, t, kShape)));
	CHECK(measured.why.find(fmt::format("expected KL divergence {:.5f}", measured.kld)) != std::string::npos);
	CHECK(measured.kld <= cost_of("turbo3/2", t, kShape));
	CHECK(c.kld < 0); // a guess is not a measurement
	CHECK_THROWS_WITH_AS(choose("auto", n, 1000), doctest::Contains("raise --kv-budget"), Error);
	CHECK(choose("kivi2", n, 0).policy.text == "kivi2"); // not a choice: unchanged
}

TEST_CASE("choose: auto for as many tokens as fit, where that is asked for") {
	const uint64_t n = 16384;
	const auto fewer = [](uint64_t tokens, size_t budget) {
		return choose_policy(parse_policy("auto"), kShape, nullptr, tokens, budget, /*or_fewer=*/true);
	};
	const size_t enough = bytes_of("fp16", n);
	CHECK(fewer(n, enough).policy.name == "fp16");
	CHECK(fewer(n, enough - 1).policy.text == choose("auto", n, enough - 1).policy.text); // all of them fit
	const size_t half = most_bytes(make_plan(parse_policy("turbo2/1"), kShape), n / 2);
	CHECK_THROWS_AS(choose("auto", n, half), Error);
	const Choice c = fewer(n, half);
	CHECK(bits_of(c.policy.text) == bits_of("turbo2/1"));
	const uint64_t fit = tokens_that_fit(make_plan(c.policy, kShape), half, n);
	CHECK(fit >= n / 2);
	CHECK(fit < n / 2 + 256); // a page's tokens more may fit
	CHECK(c.why.find(fmt::format("{} tokens take at most", fit)) != std::string::npos);
	CHECK_THROWS_WITH_AS(fewer(n, 1000), doctest::Contains("the first tokens take"), Error);
}

TEST_CASE("choose: between 4 and 8 bits there are sides of 4 and of 8") {
	const uint64_t n = 16384;
	const size_t least = bytes_of("turbo4", n), most = bytes_of("turbo8", n);
	for (const double part : {0.2, 0.5, 0.9}) {
		CAPTURE(part);
		const size_t budget = least + size_t(part * double(most - least));
		const Choice c = choose("auto", n, budget);
		CHECK(bytes_of(c.policy.text, n) <= budget);
		CHECK(bytes_of(c.policy.text, n) > budget - (most - least) / 4); // a step is an eighth
		const Format first = make_plan(c.policy, kShape).layers[0].tier[int(Tier::Regular)].fmt;
		CHECK(first.k.bits == 8); // keys before values
		CHECK(first.k.scale == Scale::PerChannel);
		CHECK(first.k.group == 128); // the codebooks' pages
	}
	CHECK(choose("auto,mean=off,param_bits=16", n, most).policy.name == "turbo"); // all have 8 bits: no codebook
	const Format both = make_plan(parse_policy("turbo8"), kShape).layers[0].tier[int(Tier::Regular)].fmt;
	CHECK(both.v.scale == Scale::PerToken);
	CHECK(both.v.group == kShape.head_dim);
	CHECK_FALSE(both.v.rotate);
	// K and V in 8 bits: a scale and zero point for 128 tokens, and for 64 channels
	CHECK(bits_of("turbo8") == doctest::Approx((8 + 32. / 128 + 8 + 32. / 64) / 2));
	CHECK(bits_of("rtn4,k.bits=16") == doctest::Approx((16 + 4 + 1) / 2.));
	CHECK(bits_of("turbo16/2") == doctest::Approx((16 + 2 + 8. / 64) / 2).epsilon(0.002));
}

TEST_CASE("choose: what is assigned costs hardly more than the best of all assignments") {
	const KvShape shape{2, 2, 64};
	double side_bits[2][kNSideFormats]; // per element of keys, of values, in each format
	for (int i = 0; i < kNSideFormats; ++i)
		for (const bool is_k : {true, false}) {
			const SideFormat f = kSideFormats[i], eight = kSideFormats[kEightBits];
			const auto bits = [&](SideFormat k, SideFormat v) {
				const std::string text = "turbo4" + side_options(k, true, 0, 1) + side_options(v, false, 0, 1);
				return packed_bits(make_plan(parse_policy(text), shape));
			};
			const double other = is_k ? 8 + 32. / 64 : 8 + 32. / 128; // 8 bits for the other side, with parameters
			side_bits[!is_k][i] = 2 * (is_k ? bits(f, eight) : bits(eight, f)) - other;
		}
	for (uint32_t seed = 1; seed <= 12; ++seed) {
		const Tuning t = random_tuning(2, seed);
		for (const double bits : {2.0, 2.6, 3.3, 4.4, 6.0}) {
			CAPTURE(seed);
			CAPTURE(bits);
			double best = INFINITY;
			for (int i = 0; i < kNSideFormats * kNSideFormats * kNSideFormats * kNSideFormats; ++i) {
				int of[4], rest = i; // format of the keys of both layers, of the values of both
				for (int& f : of) f = rest % kNSideFormats, rest /= kNSideFormats;
				if (kSideFormats[of[0]].bits < 2 || kSideFormats[of[1]].bits < 2) continue;
				const double cost =
				    t.layers[0].k[of[0]] + t.layers[1].k[of[1]] + t.layers[0].v[of[2]] + t.layers[1].v[of[3]];
				if (cost < best &&
				    side_bits[0][of[0]] + side_bits[0][of[1]] + side_bits[1][of[2]] + side_bits[1][of[3]] <= bits * 4)
					best = cost;
			}
			const std::string text = assign_bits(t, shape, bits);
			CHECK(packed_bits(make_plan(parse_policy(text), shape)) <= bits + 1e-6);
			CHECK(cost_of(text, t, shape) <= best * 1.05);
		}
	}
}

TEST_CASE("choose: keys with outlier channels get a scale per channel, and nothing does that was not measured") {
	Tuning t{std::vector<LayerCost>(4)};
	for (int i = 0; i < kNSideFormats; ++i)
		for (size_t l = 0; l < 4; ++l) {
			const SideFormat f = kSideFormats[i];
			const double cost = std::exp2(-2. * f.bits);
			t.layers[l].k[i] = l < 2 && !f.uniform ? 100 * cost : cost * (f.uniform ? 1.5 : 1);
			t.layers[l].v[i] = f.uniform && f.bits < 8 ? 9 * cost : cost;
		}
	const Choice c = choose("tuned:2.3", 100, 0, &t);
	CAPTURE(c.policy.text);
	const KvPlan plan = make_plan(c.policy, kShape);
	for (size_t l = 0; l < 4; ++l) {
		const Format& f = plan.layers[l].tier[int(Tier::Regular)].fmt;
		CHECK(f.k.scale == (l < 2 ? Scale::PerChannel : Scale::Codebook));
		CHECK(f.v.scale == Scale::Codebook);
		if (l < 2) {
			CHECK(f.k.group == 128); // the codebooks' pages
			CHECK(f.k.param_bits == 8);
			CHECK(f.k.eta == eta_of_bits(f.k.bits));
			CHECK_FALSE(f.k.rotate);
		}
	}
	CHECK(c.kld == doctest::Approx(cost_of(c.policy.text, t, kShape)));
	for (const char* text : {"tuned:1.5", "tuned:2.3", "tuned:4", "tuned:6"})
		CHECK(choose(text, 100, 0).policy.text.find("scale") == std::string::npos);
	// A head narrower than the group of 64 channels is one group.
	const KvShape narrow{4, 8, 16};
	for (LayerCost& layer : t.layers)
		for (int i = 0; i < kNSideFormats; ++i)
			layer.v[i] = (kSideFormats[i].uniform ? 1. : 10.) / kSideFormats[i].bits;
	const KvPlan heads = make_plan(choose_policy(parse_policy("tuned:3"), narrow, &t, 100, 0).policy, narrow);
	CHECK(heads.layers[0].tier[int(Tier::Regular)].fmt.v.group == 16);
	CHECK(make_plan(parse_policy("kivi2,param_bits=8"), narrow).layers[0].tier[int(Tier::Regular)].fmt.v.group == 16);
	CHECK_THROWS_WITH_AS(make_plan(parse_policy("kivi2,param_bits=8,v.group=32"), narrow),
	                     doctest::Contains("v.group=head"), Error);
}

TEST_CASE("choose: with latent attention the sides are the latent and the rotated key, which has 4 or 8 bits") {
	const KvShape shape{4, 1, 512, 64};
	Tuning t = guessed_tuning(4, /*of_latent=*/true);
	for (int i = 0; i < kNSideFormats; ++i) {
		const SideFormat f = kSideFormats[i];
		CHECK(std::isfinite(t.layers[0].v[i]) == (f.bits == 8)); // 4 bits of rotated keys were not measured
		for (size_t l = 0; l < 4; ++l) {
			t.layers[l].k[i] = std::exp2(-2. * f.bits);
			// rotated keys matter in layer 2 alone
			if (has_side_format(f, false, true)) t.layers[l].v[i] = (l == 2 ? 1. : 1e-9) * std::exp2(-f.bits);
		}
	}
	const auto rope = [&](const char* text, const Tuning* tuning, uint32_t l) {
		const KvPlan plan = make_plan(choose_policy(parse_policy(text), shape, tuning, 100, 0).policy, shape);
		return int(plan.layers[l].tier[int(Tier::Regular)].fmt.v.bits);
	};
	for (uint32_t l = 0; l < 4; ++l) CHECK(rope("tuned:2.5", &t, l) == 4); // 8 would take 0.11 bits more in one layer
	CHECK(rope("tuned:2.65", &t, 2) == 8);
	for (uint32_t l = 0; l < 4; ++l) CHECK(rope("tuned:2.5", nullptr, l) == 8);
	for (const double bits : {1.6, 2., 2.5, 3.3, 4.}) {
		const Choice c = choose_policy(parse_policy(fmt::format("tuned:{}", bits)), shape, &t, 100, 0);
		CAPTURE(c.policy.text);
		CHECK(c.policy.text.find("v.") == std::string::npos);
		CHECK(packed_bits(make_plan(c.policy, shape)) <= bits + 1e-9);
		CHECK(packed_bits(make_plan(c.policy, shape)) > bits - 0.3);
	}
	CHECK(auto_steps(parse_policy("auto"), shape, &t).back().policy.text.starts_with("turbo2"));
	for (const char* text : {"auto,rope.bits=4", "tuned:3,rope.bits@0=4"})
		CHECK_THROWS_WITH_AS(parse_policy(text), doctest::Contains("bits and layers are what"), Error);
	const KvPlan ranges = make_plan(parse_policy("turbo3,rope.bits@1-2=8,rope.bits=4"), shape);
	for (uint32_t l = 0; l < 4; ++l)
		CHECK(int(ranges.layers[l].tier[int(Tier::Regular)].fmt.v.bits) == (l == 1 || l == 2 ? 8 : 4));
	CHECK_THROWS_WITH_AS(make_plan(parse_policy("turbo3,rope.bits@4=4"), shape), doctest::Contains("no layer 4"),
	                     Error);
	CHECK_THROWS_WITH_AS(make_plan(parse_policy("turbo3,rope.bits@0=4"), kShape), doctest::Contains("latent"), Error);
	CHECK_THROWS_WITH_AS(parse_policy("turbo3,rope.bits@0=5"), doctest::Contains("8 or 4"), Error);
}

TEST_CASE("choose: names and options that cannot be are refused") {
	for (const char* text : {"tuned:x", "tuned:", "tuned:0.5", "tuned:99", "tuned", "auto:2", "auto,grup=4",
	                         "auto,ratio=0.5", "auto,k.bits=4", "tuned:3,v.bits@1=2", "auto,mean@0=off"}) {
		CAPTURE(text);
		CHECK_THROWS_AS(parse_policy(text), Error);
	}
	for (const auto& [text, says] : {std::pair("auto,fetch=16", "auto,fetch=16: fetch=16 is not there for codebooks"),
	                                 std::pair("auto,ratio=0.5", "auto,ratio=0.5: ratio and budget need"),
	                                 std::pair("auto,grup=4", "KV policy auto has no option 'grup'")})
		CHECK_THROWS_WITH_AS(parse_policy(text), doctest::Contains(says), Error); // by what was given
	CHECK(is_choice(parse_policy("auto,recent=64,flush=64")));
	CHECK(parse_policies("kivi2,tuned:2.3,auto").size() == 3);
	CHECK_THROWS_WITH_AS(make_plan(parse_policy("auto"), kShape), doctest::Contains("memory"), Error);
	const KvShape odd{4, 2, 40}; // blocks of 8 channels
	CHECK(choose_policy(parse_policy("tuned:2.5"), odd, nullptr, 100, 0).policy.name == "turbo");
}

TEST_CASE("choose: steps of auto go from f16 to fewest bits: less memory, and more expected loss, with each") {
	Tuning measured = guessed_tuning(kShape.n_layers);
	for (LayerCost& c : measured.layers)
		for (int i = 0; i < kNSideFormats; ++i) c.k[i] *= 0.01, c.v[i] *= 0.01;
	for (const Tuning* t : {static_cast<const Tuning*>(nullptr), static_cast<const Tuning*>(&measured)}) {
		const std::vector<CacheStep> steps = auto_steps(parse_policy("auto"), kShape, t);
		REQUIRE(steps.size() == 7);
		CHECK(steps[0].policy.text == "fp16");
		CHECK(steps[0].kld == 0);
		CHECK(steps.back().policy.text == "turbo2/1");
		for (size_t i = 1; i < steps.size(); ++i) {
			CHECK(packed_bits(make_plan(steps[i].policy, kShape)) <
			      packed_bits(make_plan(steps[i - 1].policy, kShape)));
			CHECK(steps[i].kld > steps[i - 1].kld);
		}
		// the sum of the layers' costs; without measurements about what SmolLM2 loses
		if (t) CHECK(steps.back().kld == doctest::Approx(kShape.n_layers * (0.01 * 10 * 0.1165 + 0.01 * 0.3634)));
		if (!t) CHECK(steps.back().kld == doctest::Approx(0.0463).epsilon(0.01));
	}
	const KvPolicy options = parse_policy("auto,recent=64,flush=64");
	CHECK(auto_steps(options, kShape, nullptr).back().policy.text.ends_with(",recent=64,flush=64"));
	CHECK(is_auto(options));
	CHECK(!is_auto(parse_policy("tuned:3")));
}
