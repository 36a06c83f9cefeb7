// Sampling: every option, unusual logits, and the distribution of the choices.
#include "engine/core/error.h"
#include "engine/run/sampler.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

using namespace kvrun;

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplerOptions all_off(double temperature = 1, uint64_t seed = 1) {
	return {.temperature = temperature,
	        .top_k = 0,
	        .top_p = 1,
	        .min_p = 0,
	        .repeat_penalty = 1,
	        .repeat_last = 64,
	        .seed = seed};
}
std::vector<float> some_logits(size_t n, uint64_t seed) {
	std::mt19937_64 rng(seed);
	std::vector<float> out(n);
	for (float& x : out) x = float(double(rng() >> 11) * 0x1p-53 * 16 - 8);
	return out;
}
std::set<uint32_t> kept(const SamplerOptions& o, const std::vector<float>& logits) {
	Sampler s(o);
	s.sample(logits);
	std::set<uint32_t> ids;
	for (const auto& c : s.candidates()) ids.insert(c.id);
	return ids;
}
} // namespace

TEST_CASE("T37 sampler: options outside their range are refused by name") {
	const double bad[] = {-1, -1e-30, kNan, kInf, -kInf, 1e30};
	for (const double x : bad) {
		CAPTURE(x);
		SamplerOptions o = all_off();
		o.temperature = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("temperature"), Error);
		o = all_off(), o.top_p = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("top-p"), Error);
		o = all_off(), o.min_p = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("min-p"), Error);
		o = all_off(), o.repeat_penalty = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("repeat penalty"), Error);
	}
	SamplerOptions o = all_off();
	o.min_p = 2;
	CHECK_THROWS_AS(Sampler{o}, Error);
	o = all_off(), o.repeat_penalty = 0;
	CHECK_THROWS_AS(Sampler{o}, Error);
	o = all_off(), o.repeat_last = 65537;
	CHECK_THROWS_AS(Sampler{o}, Error);
	for (const double x : {double(kNan), double(kInf), -double(kInf), 100.1, -1e30}) {
		o = all_off(), o.presence_penalty = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("presence penalty"), Error);
		o = all_off(), o.frequency_penalty = x;
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("frequency penalty"), Error);
	}
	const std::pair<const char*, double& (*)(SamplerOptions&)> further[] = {
	    {"top-n-sigma", [](SamplerOptions& s) -> double& { return s.top_n_sigma; }},
	    {"typical-p", [](SamplerOptions& s) -> double& { return s.typical_p; }},
	    {"XTC probability", [](SamplerOptions& s) -> double& { return s.xtc_probability; }},
	    {"XTC threshold", [](SamplerOptions& s) -> double& { return s.xtc_threshold; }},
	    {"range of dynamic", [](SamplerOptions& s) -> double& { return s.dynatemp_range; }},
	    {"exponent of dynamic", [](SamplerOptions& s) -> double& { return s.dynatemp_exponent; }},
	    {"DRY multiplier", [](SamplerOptions& s) -> double& { return s.dry.multiplier; }},
	    {"DRY base", [](SamplerOptions& s) -> double& { return s.dry.base; }},
	    {"target of Mirostat", [](SamplerOptions& s) -> double& { return s.mirostat.target; }},
	    {"target of adaptive-p", [](SamplerOptions& s) -> double& { return s.adaptive.target; }},
	    {"decay of adaptive-p", [](SamplerOptions& s) -> double& { return s.adaptive.decay; }},
	    {"rate of Mirostat", [](SamplerOptions& s) -> double& { return s.mirostat.rate; }}};
	for (const auto& [name, field] : further)
		for (const double x : {double(kNan), double(kInf), -2.0, 1e30}) {
			o = all_off(), field(o) = x;
			CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains(name), Error);
		}
	o = all_off(), o.mirostat.version = 3;
	CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("Mirostat is 3"), Error);
	o = all_off(), o.dry.breakers = {"\n", ""};
	CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("breaker is empty"), Error);
	for (const float x : {kNan, kInf}) {
		o = all_off(), o.bias = {{3, x}};
		CHECK_THROWS_WITH_AS(Sampler{o}, doctest::Contains("bias of token 3"), Error);
	}
}

TEST_CASE("sampler: penalties of the answer's tokens and bias are added to the logits") {
	const std::vector<float> logits = {1, 2, 3, 4};
	const auto changed = [&](const SamplerOptions& o, std::span<const uint32_t> prompt,
	                         std::span<const uint32_t> answer) {
		Sampler s(o);
		for (const uint32_t t : prompt) s.accept(t);
		for (const uint32_t t : answer) s.accept(t), s.count(t);
		s.sample(logits);
		std::vector<float> out(logits.size(), -kInf);
		for (const auto& c : s.candidates()) out[c.id] = c.logit;
		return out;
	};
	const std::vector<uint32_t> prompt = {0, 3, 9}, answer = {1, 2, 2, 2, 77}; // including ids past the vocabulary
	SamplerOptions o = all_off();
	o.presence_penalty = 0.5;
	CHECK(changed(o, prompt, answer) == std::vector<float>{1, 1.5, 2.5, 4});
	o = all_off(), o.frequency_penalty = 0.25;
	CHECK(changed(o, prompt, answer) == std::vector<float>{1, 1.75, 2.25, 4});
	o.presence_penalty = -1; // makes tokens in the text more likely
	CHECK(changed(o, prompt, answer) == std::vector<float>{1, 2.75, 3.25, 4});
	CHECK(changed(o, prompt, {}) == logits);
	o = all_off(), o.bias = {{0, 4.5f}, {3, -kInf}, {1, -1}};
	CHECK(changed(o, prompt, answer) == std::vector<float>{5.5, 1, 3, -kInf});
	o.repeat_penalty = 2; // of prompt and answer; it divides first
	CHECK(changed(o, prompt, answer) == std::vector<float>{5, 0, 1.5, -kInf});
	o = all_off(0), o.bias = {{0, 100}};
	CHECK(Sampler(o).sample(logits) == 0); // also for greedy sampling
	o.bias = {{2, 3.4e38f}}, o.frequency_penalty = 100;
	Sampler s(o);
	s.count(0);
	CHECK(s.sample(logits) == 2); // finite logits stay finite
}

TEST_CASE("sampler: tokens that are never chosen, also where the largest logits suffice") {
	const auto logits = some_logits(500, 11);
	std::vector<Logit> top;
	for (uint32_t i = 0; i < logits.size(); ++i) top.push_back({i, logits[i]});
	std::ranges::sort(
	    top, [](const Logit& a, const Logit& b) { return a.value != b.value ? a.value > b.value : a.id < b.id; });
	const auto largest = [&](uint32_t n) { // by id, as devices list them
		std::vector<Logit> out(top.begin(), top.begin() + n);
		std::ranges::sort(out, {}, &Logit::id);
		return out;
	};
	const std::vector<uint64_t> bits(8, 0x5555555555555555u);
	const TokenFilter even{[](uint32_t t) { return t % 2 == 0; }, [&] { return std::span(bits); }};
	for (const double temperature : {0.0, 1.5})
		for (uint64_t seed = 0; seed < 40; ++seed) {
			SamplerOptions o = all_off(temperature, seed), by_bias = o;
			o.top_k = by_bias.top_k = 8;
			o.never = {top[0].id, top[3].id};
			by_bias.bias = {{top[0].id, -kInf}, {top[3].id, -kInf}};
			const uint32_t want = Sampler(by_bias).sample(logits);
			CHECK(Sampler(o).sample(logits) == want);
			Sampler s(o);
			REQUIRE(s.wanted() == (temperature > 0 ? 11 : 3));
			const std::vector<Logit> few = largest(s.wanted());
			CHECK(s.sample(RowLogits{.top = few}) == want);
			Sampler filtered(o), all(by_bias);
			const std::vector<Logit> more = largest(filtered.wanted_to_filter());
			const RowLogits whole{.all = logits};
			const std::optional<uint32_t> got = filtered.sample(RowLogits{.top = more}, even);
			REQUIRE(got);
			CHECK(*got == all.sample(whole, even));
		}
	SamplerOptions o = all_off(0);
	o.never = {1, 2};
	Sampler s(o);
	s.count(5);
	CHECK(s.wanted() == 3);
	o.bias = {{1, 1}};
	CHECK(Sampler(o).wanted() == 0);
	o.bias.clear();
	o.never.resize(200); // more than a device's list of candidates has room for
	CHECK(Sampler(o).wanted() == 0);
}

TEST_CASE("sampler: what changes logits needs all of them") {
	SamplerOptions o = all_off(0);
	CHECK(Sampler(o).wanted() == 1);
	o.bias = {{1, 1}};
	CHECK(Sampler(o).wanted() == 0);
	o = all_off(0), o.presence_penalty = 1;
	Sampler s(o);
	CHECK(s.wanted() == 1); // nothing is penalised yet
	s.count(5);
	CHECK(s.wanted() == 0);
}

TEST_CASE("T37 sampler: any accepted options give an id of the vocabulary and shares that add up") {
	const auto logits = some_logits(300, 5);
	int tried = 0;
	for (const double temperature : {0.0, 1e-30, 1e-6, 1e-3, 0.8, 1.0, 100.0, 1e6})
		for (const uint32_t top_k : {0u, 1u, 40u, 299u, 300u, 301u, 4000000000u})
			for (const double top_p : {0.0, 1e-9, 0.5, 0.95, 1.0})
				for (const double min_p : {0.0, 1e-9, 0.05, 1.0})
					for (const double penalty : {0.01, 1.0, 1.3, 100.0}) {
						Sampler s({temperature, top_k, top_p, min_p, penalty, 64, uint64_t(tried++)});
						for (uint32_t t = 0; t < 100; ++t) s.accept(t * 7); // including ids past the vocabulary
						for (int i = 0; i < 3; ++i) REQUIRE(s.sample(logits) < 300);
						double sum = 0;
						for (const auto& c : s.candidates()) {
							REQUIRE(c.share >= 0);
							REQUIRE(c.share <= 1);
							sum += c.share / s.total();
						}
						REQUIRE(sum == doctest::Approx(1).epsilon(1e-9));
					}
}

TEST_CASE("T37 sampler: temperatures up to 1e-6 choose the likeliest, ties by lowest id") {
	auto logits = some_logits(100, 9);
	logits[41] = logits[17] = 30;
	for (const double temperature : {0.0, 1e-30, 1e-6})
		for (uint64_t seed = 0; seed < 20; ++seed) CHECK(Sampler(all_off(temperature, seed)).sample(logits) == 17);
}

TEST_CASE("T38, T15 sampler: logits that are equal, infinite or no numbers") {
	const std::vector<float> equal(64, 2.5f);
	CHECK(Sampler(all_off(0)).sample(equal) == 0);
	CHECK(kept(all_off(), equal).size() == 64);

	std::vector<float> one(64, -kInf);
	one[9] = -3e38f;
	CHECK(Sampler(all_off(0)).sample(one) == 9);
	CHECK(Sampler(all_off(1)).sample(one) == 9);

	for (const double temperature : {0.0, 1.0}) {
		CHECK_THROWS_WITH_AS(Sampler(all_off(temperature)).sample(std::vector<float>(64, -kInf)),
		                     doctest::Contains("above -inf"), Error);
		CHECK_THROWS_WITH_AS(Sampler(all_off(temperature)).sample(std::span<const float>()),
		                     doctest::Contains("none of 0"), Error);
		std::vector<float> broken(64, 1);
		broken[33] = kNan;
		CHECK_THROWS_WITH_AS(Sampler(all_off(temperature)).sample(broken), doctest::Contains("token 33"), Error);
		broken[33] = kInf;
		CHECK_THROWS_WITH_AS(Sampler(all_off(temperature)).sample(broken), doctest::Contains("infinite"), Error);
	}
}

TEST_CASE("T38 sampler: the repeat penalty cannot turn finite logits into none") {
	std::vector<float> low(8, -3e38f);
	SamplerOptions o = all_off();
	o.repeat_penalty = 100;
	Sampler s(o);
	for (uint32_t t = 0; t < 8; ++t) s.accept(t);
	CHECK(s.sample(low) < 8);
}

TEST_CASE("sampler: the cuts keep what their definitions say") {
	// probabilities 0.5 0.25 0.125 0.0625 0.0625
	const std::vector<float> logits = {std::log(0.0625f), std::log(0.5f), std::log(0.125f), std::log(0.25f),
	                                   std::log(0.0625f)};
	SamplerOptions o = all_off();
	o.top_k = 2;
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 3});
	o.top_k = 4; // of equal logits the one with the lower id
	CHECK(kept(o, logits) == std::set<uint32_t>{0, 1, 2, 3});
	for (const uint32_t k : {0u, 5u, 9u}) {
		o.top_k = k;
		CHECK(kept(o, logits).size() == 5);
	}
	o = all_off(), o.top_p = 0;
	CHECK(kept(o, logits) == std::set<uint32_t>{1});
	o.top_p = 0.74;
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 3});
	o.top_p = 0.76;
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 2, 3});
	o = all_off(), o.min_p = 0.3;
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 3});
	o.min_p = 0.2;
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 2, 3});
	o.min_p = 1;
	CHECK(kept(o, logits) == std::set<uint32_t>{1});
	o = all_off(), o.top_k = 4, o.top_p = 0.9, o.min_p = 0.2; // top-p uses the rest of top-k: 0.53 + 0.27 + 0.13
	CHECK(kept(o, logits) == std::set<uint32_t>{1, 2, 3});
}

TEST_CASE("sampler: each cut behind top-k leaves at least min-keep candidates, in any number of logits") {
	for (const size_t n : {3, 128, 5000}) {
		const std::vector<float> logits = some_logits(n, n);
		std::vector<uint32_t> order(n);
		std::iota(order.begin(), order.end(), 0u);
		std::ranges::sort(order, [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
		for (const uint32_t least : {1u, 2u, 30u, 10000u})
			for (const bool by_p : {true, false}) {
				SamplerOptions o = all_off();
				(by_p ? o.top_p : o.min_p) = by_p ? 0 : 1;
				o.min_keep = least;
				const size_t keep = std::min<size_t>(least, n);
				CHECK(kept(o, logits) == std::set<uint32_t>(order.begin(), order.begin() + ptrdiff_t(keep)));
				o.top_k = 2; // what comes before is not undone
				CHECK(kept(o, logits).size() == std::min<size_t>(keep, 2));
				o.temperature = 0;
				CHECK(kept(o, logits).size() == 1);
			}
	}
	SamplerOptions o = all_off();
	o.xtc_probability = 1, o.xtc_threshold = 0.2;
	const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.3f)};
	CHECK(kept(o, logits) == std::set<uint32_t>{2});
	o.min_keep = 2; // one would be left
	CHECK(kept(o, logits).size() == 3);
}

TEST_CASE("sampler: the top k of any logits are those of a full sort, in its order; the likeliest is its first") {
	const auto order = [](const std::vector<float>& x) {
		std::vector<uint32_t> ids;
		for (uint32_t i = 0; i < x.size(); ++i)
			if (x[i] != -kInf) ids.push_back(i);
		std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return x[a] > x[b]; });
		return ids;
	};
	using Change = void (*)(std::vector<float>&);
	const Change kinds[] = {[](std::vector<float>&) {},
	                        [](std::vector<float>& x) { // equal values, including 0 and -0
		                        for (float& v : x) v = std::round(v / 4) * 4;
	                        },
	                        [](std::vector<float>& x) {
		                        for (size_t i = 0; i < x.size(); ++i)
			                        if (i % 7 && i + 1 < x.size()) x[i] = -kInf;
	                        },
	                        [](std::vector<float>& x) { std::ranges::sort(x); },
	                        [](std::vector<float>& x) { std::ranges::sort(x, std::greater<>()); },
	                        [](std::vector<float>& x) { std::ranges::fill(x, -2.5f); },
	                        [](std::vector<float>& x) { // as many as k in the first block, and as many above -inf
		                        for (size_t i = 40; i < x.size(); ++i) x[i] = -kInf;
	                        }};
	for (const size_t n : {1, 2, 40, 41, 127, 128, 129, 5000, 32003})
		for (size_t kind = 0; kind < std::size(kinds); ++kind)
			for (const uint32_t k : {2u, 40u, 300u})
				for (const double penalty : {1., 1.5}) {
					INFO("n " << n << ", kind " << kind << ", k " << k << ", penalty " << penalty);
					std::vector<float> logits = some_logits(n, n + kind);
					kinds[kind](logits);
					SamplerOptions o = all_off();
					o.top_k = k, o.repeat_penalty = penalty;
					Sampler s(o);
					o.temperature = 0;
					Sampler greedy(o);
					std::vector<float> x = logits;
					for (const size_t i : {size_t(0), n / 2, n - 1}) s.accept(uint32_t(i)), greedy.accept(uint32_t(i));
					for (const size_t i : std::set<size_t>{0, n / 2, n - 1})
						if (penalty != 1 && x[i] != -kInf)
							x[i] = float(x[i] > 0 ? double(x[i]) / penalty : double(x[i]) * penalty);
					const std::vector<uint32_t> want = order(x);
					s.sample(logits);
					REQUIRE(s.candidates().size() == std::min<size_t>(k, want.size()));
					CHECK(s.candidates()[0].id == want[0]);
					CHECK(greedy.sample(logits) == want[0]);
					if (want.size() <= k) continue; // nothing was cut; the others follow in any order
					for (size_t i = 0; i < k; ++i) REQUIRE(s.candidates()[i].id == want[i]);
				}
}

TEST_CASE("sampler: without top-k, top-p and min-p keep what their definitions keep of a full sort, in its order") {
	for (const size_t n : {1, 3, 128, 5000, 32003})
		for (const float scale : {0.f, 0.01f, 0.3f, 1.f, 20.f, 1e30f}) // times -8 to 8
			for (const float above : {0.f, 60.f})                      // of the likeliest above the others
				for (const double top_p : {0., 0.3, 0.95, 1 - 1e-9, 1.})
					for (const double min_p : {0., 1e-12, 0.05, 0.9}) {
						if (top_p == 1 && min_p == 0) continue; // nothing is cut
						INFO("n " << n << ", scale " << scale << ", above " << above << ", top-p " << top_p
						          << ", min-p " << min_p);
						std::vector<float> x = some_logits(n, n);
						for (float& v : x) v *= scale;
						x[n / 2] += above;
						if (n > 3) x[3] = x[n - 1], x[1] = -kInf;
						std::vector<uint32_t> want(n);
						std::iota(want.begin(), want.end(), 0u);
						std::ranges::stable_sort(want, [&](uint32_t a, uint32_t b) { return x[a] > x[b]; });
						const auto share = [&](uint32_t id) { return std::exp(double(x[id]) - double(x[want[0]])); };
						double all = 0, have = 0;
						for (const uint32_t id : want) all += share(id);
						size_t keep = 0;
						while (keep == 0 || (keep < n && have < top_p * all && x[want[keep]] != -kInf))
							have += share(want[keep++]);
						while (share(want[keep - 1]) < min_p) --keep;
						SamplerOptions o = all_off();
						o.top_p = top_p, o.min_p = min_p;
						Sampler s(o);
						s.sample(x);
						// With equal probabilities a sum may equal top-p exactly; then rounding decides about one
						// token.
						const size_t got = s.candidates().size();
						REQUIRE((got == keep || (scale == 0.f && std::max(got, keep) - std::min(got, keep) == 1)));
						for (size_t i = 0; i < got; ++i) REQUIRE(s.candidates()[i].id == want[i]);
					}
}

TEST_CASE("sampler: the first largest of logits that have no order is one of them") {
	for (const size_t n : {1, 128, 129, 300})
		for (const float wrong : {kNan, -kNan, kInf})
			for (const size_t at : {size_t(0), n / 2, n - 1}) {
				std::vector<float> logits = some_logits(n, n);
				logits[at] = wrong;
				LogitBlocks blocks;
				blocks.scan(logits);
				CHECK_FALSE(blocks.ordered());
				CHECK(blocks.first_max() < n);
			}
	LogitBlocks none;
	none.scan({});
	CHECK(none.ordered());
	CHECK(none.max() == -kInf);
}

TEST_CASE("sampler: lists of candidates that a driver got wrong are none") {
	CandidateLists lists;
	const auto put = [&](std::vector<uint32_t> words) {
		const std::span<uint32_t> to = lists.words(2);
		std::ranges::fill(to, 0xffffffffu);
		to[KV_CANDIDATE_WORDS] = 1, to[KV_CANDIDATE_WORDS + 1] = 4, to[KV_CANDIDATE_WORDS + 2] = 0x40000000; // 2.0
		std::ranges::copy(words, to.begin());
		lists.arrived(10);
		REQUIRE(lists.of(1, 1).size() == 1); // of the other row
		CHECK(lists.of(1, 1)[0].id == 4);
		CHECK(lists.of(1, 1)[0].value == 2);
		CHECK(lists.of(1, 2).empty()); // fewer than requested
		return lists.of(0, 1).size();
	};
	CHECK(put({3, 0, 1, 5, 2, 9, 3}) == 3);
	CHECK(put({0}) == 0);
	CHECK(put({KV_CANDIDATES + 1}) == 0);
	CHECK(put({0xffffffffu}) == 0);
	CHECK(put({2, 5, 1, 10, 2}) == 0); // outside the vocabulary
	CHECK(put({2, 5, 1, 5, 2}) == 0);  // twice
	CHECK(put({2, 5, 1, 4, 2}) == 0);  // out of order
}

TEST_CASE("sampler: the repeat penalty divides what is positive, multiplies what is negative, and forgets") {
	SamplerOptions o = all_off(0);
	o.repeat_penalty = 2, o.repeat_last = 2;
	Sampler s(o);
	CHECK(s.sample(std::vector<float>{3, 2, -1}) == 0);
	s.accept(0);
	s.accept(0); // twice counts once: 3 -> 1.5, not 0.75
	CHECK(s.sample(std::vector<float>{3, 1.4f, -1}) == 0);
	CHECK(s.sample(std::vector<float>{3, 1.6f, -1}) == 1);
	CHECK(s.sample(std::vector<float>{-1, -1.9f, -3}) == 1); // -1 becomes -2
	s.accept(1);
	s.accept(2); // 0 has left the window of two
	CHECK(s.sample(std::vector<float>{3, 2.9f, -1}) == 0);
}

TEST_CASE("sampler: choices follow the softmax at the given temperature") {
	const std::vector<float> logits = {0, 1, 2, 3};
	for (const double temperature : {0.5, 1.0, 4.0}) {
		Sampler s(all_off(temperature, 42));
		std::map<uint32_t, int> count;
		constexpr int kDraws = 40000;
		for (int i = 0; i < kDraws; ++i) ++count[s.sample(logits)];
		double all = 0;
		for (const float l : logits) all += std::exp(l / temperature);
		for (uint32_t t = 0; t < 4; ++t) {
			const double p = std::exp(logits[t] / temperature) / all;
			const double sigma = std::sqrt(p * (1 - p) / kDraws);
			CAPTURE(temperature);
			CAPTURE(t);
			CHECK(std::abs(double(count[t]) / kDraws - p) < 5 * sigma);
		}
	}
}

TEST_CASE("sampler: same seed, same tokens; another seed, other tokens") {
	const auto run = [](uint64_t seed) {
		SamplerOptions o;
		o.seed = seed;
		Sampler s(o);
		std::vector<uint32_t> out;
		for (uint64_t i = 0; i < 64; ++i) out.push_back(s.sample(some_logits(500, i)));
		return out;
	};
	CHECK(run(7) == run(7));
	CHECK(run(7) != run(8));
}

TEST_CASE("sampler: XTC excludes at as many tokens as its probability says") {
	const std::vector<float> logits = {3, 2.9f, 2.8f, 0};
	SamplerOptions o = all_off();
	o.xtc_threshold = 0.2;
	for (const double probability : {0.0, 0.25, 1.0}) {
		o.xtc_probability = probability;
		Sampler s(o);
		constexpr int kDraws = 4000;
		int excluded = 0;
		for (int i = 0; i < kDraws; ++i) {
			s.sample(logits);
			excluded += s.candidates()[0].id == 2; // the least likely of the three above the threshold
			CHECK(s.candidates().back().id == 3);
		}
		CHECK(std::abs(double(excluded) / kDraws - probability) <=
		      5 * std::sqrt(probability * (1 - probability) / kDraws));
	}
	o.xtc_probability = 1, o.xtc_threshold = 0.6; // one token cannot be excluded in favour of another
	Sampler s(o);
	s.sample(logits);
	CHECK(s.candidates().size() == 4);
}

TEST_CASE("sampler: DRY ends repetitions at texts that cross tokens, and keeps tokens with such a text") {
	const std::vector<std::string> texts = {"a", "b", "c", "x<", "br>y", "<br>", "d"};
	SamplerOptions o = all_off();
	o.dry.multiplier = 1, o.dry.base = 2, o.dry.allowed = 1;
	o.dry.breakers = {"<br>"};
	const auto penalty = [&](std::span<const uint32_t> before) {
		Sampler s(o, [&](uint32_t t) { return texts[t]; });
		for (const uint32_t t : before) s.accept(t);
		s.sample(std::vector<float>(texts.size(), 10));
		std::vector<float> out(texts.size());
		for (const auto& c : s.candidates()) out[c.id] = 10 - c.logit;
		return out;
	};
	using T = std::vector<uint32_t>;
	CHECK(penalty(T{0, 1, 2, 6, 0, 1}) == std::vector<float>{0, 0, 2, 0, 0, 0, 0});    // a b -> c
	CHECK(penalty(T{0, 1, 2, 0, 1, 6, 1}) == std::vector<float>{0, 0, 1, 0, 0, 0, 1}); // b -> c or d
	CHECK(penalty(T{0, 1, 3, 4, 0, 1}) == std::vector<float>{0, 0, 0, 2, 0, 0, 0});    // begins a breaker, has none
	CHECK(penalty(T{0, 1, 5, 0, 1}) == std::vector<float>(7));                         // would be a breaker
	CHECK(penalty(T{3, 4, 0, 3, 4}) == std::vector<float>(7));                         // nothing is behind the breaker
	CHECK(penalty(T{3, 4, 0, 2, 3, 4, 0}) == std::vector<float>{0, 0, 1, 0, 0, 0, 0}); // only "a" is
	o.dry.last = 3;
	CHECK(penalty(T{0, 1, 2, 6, 0, 1}) == std::vector<float>(7)); // forgotten
	o.dry.last = 5;
	CHECK(penalty(T{6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 0, 1, 2, 6, 1}) == std::vector<float>{0, 0, 1, 0, 0, 0, 0});
	o.dry.last = UINT32_MAX, o.dry.multiplier = 100, o.dry.base = 100; // finite
	const T same(200, 0);
	CHECK(penalty(same)[0] > 1e38f);
}

TEST_CASE("sampler: DRY finds the repetitions that a search at every place finds") {
	std::mt19937_64 rng(3);
	for (int text = 0; text < 300; ++text) {
		std::vector<uint32_t> t(1 + rng() % 40);
		for (uint32_t& x : t) x = uint32_t(rng() % (2 + text % 2)); // few tokens: repetitions overlap
		DryOptions o;
		o.multiplier = 1, o.base = 2, o.allowed = uint32_t(rng() % 3);
		std::vector<float> want(3);
		for (size_t end = 0; end + 1 < t.size(); ++end) { // t[end + 1] goes on after a repetition that ends at `end`
			size_t n = 0;
			while (n <= end && t[end - n] == t[t.size() - 1 - n]) ++n;
			if (n >= o.allowed) want[t[end + 1]] = std::max(want[t[end + 1]], float(std::exp2(n - o.allowed)));
		}
		if (t.size() <= o.allowed) want.assign(3, 0);
		Dry dry(o);
		for (const uint32_t x : t) dry.accept(x);
		std::vector<float> logits(3);
		dry.penalise(logits);
		for (size_t i = 0; i < want.size(); ++i) CHECK(-logits[i] == want[i]);
	}
}

TEST_CASE("sampler: with a filter, sigma and DRY see the allowed tokens") {
	SamplerOptions o = all_off();
	o.top_n_sigma = 1, o.top_k = 3, o.dry.multiplier = 1;
	Sampler s(o);
	CHECK(s.wanted() == 0);
	const std::vector<float> logits = some_logits(4096, 5);
	std::vector<uint64_t> mask(64);
	std::vector<float> excluded(logits.size(), -kInf);
	for (size_t t = 0; t < logits.size(); t += 700) mask[t / 64] |= uint64_t(1) << t % 64, excluded[t] = logits[t];
	const TokenFilter filter = {[&](uint32_t t) { return t % 700 == 0; },
	                            [&] { return std::span<const uint64_t>(mask); }};
	RowLogits row;
	row.all = logits;
	REQUIRE(s.sample(row, filter));
	std::set<uint32_t> ids;
	for (const auto& c : s.candidates()) ids.insert(c.id);
	CHECK(ids == kept(o, excluded));
}
