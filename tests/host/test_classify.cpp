// Results of one flush and choice of probe rows, against definitions written here.
#include "engine/core/error.h"
#include "engine/kv_host/classify.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <random>
#include <set>

using namespace kvrun;

TEST_CASE("classify: without a rank everything is Regular; by log, every second stays from the first on") {
	const Flush all = classify({.rank = Rank::None}, 5, 0, {});
	CHECK(all.salient.empty());
	CHECK(all.regular == std::vector<uint32_t>{0, 1, 2, 3, 4});
	const Flush log = classify({.rank = Rank::LogWindow}, 6, 3, {});
	CHECK(log.salient == std::vector<uint32_t>{0, 2, 4});
	CHECK(log.regular == std::vector<uint32_t>{1, 3, 5});
	CHECK(how_many_salient({.rank = Rank::LogWindow}, 6, 100) == 3);
}

TEST_CASE("classify: by score the best stay, and a tie goes to the later token") {
	const Select s = {.rank = Rank::ScoreSum, .ratio = 0.5};
	const std::vector<double> score = {3, 1, 3, 2, 3, 1};
	CHECK(classify(s, 6, 1, score).salient == std::vector<uint32_t>{4});
	CHECK(classify(s, 6, 2, score).salient == std::vector<uint32_t>{2, 4});
	CHECK(classify(s, 6, 4, score).salient == std::vector<uint32_t>{0, 2, 3, 4});
	CHECK(classify(s, 6, 5, score).salient == std::vector<uint32_t>{0, 2, 3, 4, 5});
	CHECK(classify(s, 6, 5, score).regular == std::vector<uint32_t>{1});
	CHECK(classify(s, 6, 0, score).salient.empty());
	CHECK(classify(s, 6, 6, score).regular.empty());
	CHECK_THROWS_AS(classify(s, 6, 2, std::vector<double>(5)), Error);
}

TEST_CASE("classify: random scores with many ties agree with a full sort; NaN ranks last") {
	std::mt19937 rng(3);
	for (int round = 0; round < 200; ++round) {
		const uint32_t n = 1 + rng() % 300, want = rng() % (n + 1);
		std::vector<double> score(n);
		for (double& x : score) x = rng() % 20 ? double(rng() % 16) : std::nan("");
		std::vector<uint32_t> order(n);
		std::iota(order.begin(), order.end(), 0u);
		std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
			const double x = std::isnan(score[a]) ? -1 : score[a], y = std::isnan(score[b]) ? -1 : score[b];
			return x > y || (x == y && a > b);
		});
		std::vector<uint32_t> best(order.begin(), order.begin() + want);
		std::sort(best.begin(), best.end());
		const Flush f = classify({.rank = Rank::ScoreMean, .ratio = 0.5}, n, want, score);
		REQUIRE(f.salient == best);
		std::vector<uint32_t> both = f.salient;
		both.insert(both.end(), f.regular.begin(), f.regular.end());
		std::sort(both.begin(), both.end());
		std::sort(order.begin(), order.end());
		REQUIRE(both == order);
		REQUIRE(std::is_sorted(f.regular.begin(), f.regular.end()));
	}
}

TEST_CASE("classify: how many stay is half-to-even of the share, capped by budget and candidates") {
	CHECK(round_share(0.6, 256) == 154); // 153.6
	CHECK(round_share(0.2, 256) == 51);  // 51.2
	CHECK(round_share(0.25, 10) == 2);   // 2.5, to even
	CHECK(round_share(0.25, 14) == 4);   // 3.5
	CHECK(round_share(0.05, 10) == 0);   // 0.5
	const Select ratio = {.rank = Rank::ScoreSum, .ratio = 0.2};
	CHECK(how_many_salient(ratio, 40, 1000) == 40);
	CHECK(how_many_salient(ratio, 400, 1000) == 200);
	const Select budget = {.rank = Rank::ScoreSum, .budget = 64};
	CHECK(how_many_salient(budget, 96, 1000) == 64);
	CHECK(how_many_salient(budget, 32, 1000) == 32);
	CHECK(how_many_salient({.rank = Rank::ScoreSum, .ratio = 0.2, .budget = 64}, 400, 1000) == 64);
	CHECK(how_many_salient({}, 400, 1000) == 0);
}

TEST_CASE("probes: the newest 5 % and 5 % of the rest, without repetition, by seed") {
	const Select s = {.rank = Rank::ScoreMean, .ratio = 0.6, .probe_recent = 0.05, .probe_random = 0.05};
	for (uint32_t n : {1u, 2u, 9u, 10u, 20u, 99u, 256u, 840u, 3072u, 20001u}) {
		CAPTURE(n);
		const uint32_t newest = std::max<uint32_t>(1, uint32_t(std::nearbyint(0.05 * n))),
		               random = uint32_t(std::nearbyint(0.05 * n));
		const std::vector<uint32_t> rows = probe_rows(s, n, 42);
		CHECK(rows.size() == newest + random);
		CHECK(std::is_sorted(rows.begin(), rows.end()));
		CHECK(std::set<uint32_t>(rows.begin(), rows.end()).size() == rows.size());
		for (uint32_t i = 0; i < newest; ++i) CHECK(rows[rows.size() - 1 - i] == n - 1 - i);
		CHECK(rows == probe_rows(s, n, 42));
		if (n > 800) CHECK(rows != probe_rows(s, n, 43));
	}
	// Every other row is drawn about equally often.
	std::vector<int> drawn(100);
	for (uint64_t seed = 0; seed < 4000; ++seed)
		for (uint32_t r : probe_rows(s, 100, seed)) ++drawn[r];
	for (int i = 0; i < 95; ++i) { // binomial(4000, 5 / 95): mean 210.5, sigma 14.1
		CHECK(drawn[i] > 210 - 5 * 15);
		CHECK(drawn[i] < 210 + 5 * 15);
	}
	for (int i = 95; i < 100; ++i) CHECK(drawn[i] == 4000);
	CHECK(probe_rows({.rank = Rank::LogWindow}, 100, 1).empty());
	CHECK(probe_rows(s, 0, 1).empty());
	CHECK(probe_rows({.rank = Rank::ScoreSum, .ratio = 1}, 100, 1).size() == 100); // all rows is the default
	CHECK(probe_rows({.rank = Rank::KeyLength, .ratio = 1}, 100, 1) == std::vector<uint32_t>{99}); // any that sees all
	const Select norm = {.recent_keep = 3, .flush = 5, .rank = Rank::KeyLength, .ratio = 1};
	for (uint32_t i = 0; i < 8; ++i) CHECK(is_probe(norm, i, 1000 + i, 1) == (i == 7)); // the last before a flush
}

TEST_CASE("probes: of a run of 100 decoded tokens the last 5 and about 5 % of the others") {
	const Select s = {.flush = 100, .rank = Rank::ScoreMean, .ratio = 0.6, .probe_recent = 0.05, .probe_random = 0.05};
	int others = 0;
	for (uint64_t run = 0; run < 400; ++run)
		for (uint32_t i = 0; i < 100; ++i) {
			const bool probe = is_probe(s, i, run * 100 + i, 7);
			REQUIRE(probe == is_probe(s, i, run * 100 + i, 7));
			if (i >= 95)
				REQUIRE(probe);
			else
				others += probe;
		}
	CHECK(others > 1900 - 5 * 43); // binomial(38000, 0.05): mean 1900, sigma 42.5
	CHECK(others < 1900 + 5 * 43);
	const Select all = {.recent_keep = 32, .rank = Rank::ScoreSum, .ratio = 0.2};
	for (uint32_t i = 0; i < 64; ++i) CHECK(is_probe(all, i, i, 1));
	CHECK_FALSE(is_probe({}, 0, 0, 1));
}

TEST_CASE("probes: a mean is over the rows that see the token") {
	const std::vector<uint32_t> rows = {2, 5, 6, 9};
	std::vector<float> sums(20);
	for (size_t i = 0; i < sums.size(); ++i) sums[i] = 12.f * float(i + 1);
	const std::vector<float> before = sums;
	normalise_scores({.rank = Rank::ScoreSum}, sums, 10, rows);
	CHECK(sums == before);
	normalise_scores({.rank = Rank::ScoreMean}, sums, 10, rows);
	const float see[] = {4, 4, 4, 3, 3, 3, 2, 1, 1, 1};
	for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == before[i] / see[i % 10]);
	std::vector<float> unseen = {8};
	normalise_scores({.rank = Rank::ScoreMean}, unseen, 1, {});
	CHECK(unseen[0] == 8);
}
