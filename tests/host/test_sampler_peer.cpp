// Samplers beside llama.cpp's: what they keep of the same logits, behind the same tokens.
#include "engine/run/adaptive_p.h"
#include "engine/run/mirostat.h"
#include "engine/run/sampler.h"
#include "models/gguf.h"
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

using namespace kvrun;
using Json = nlohmann::json;

namespace {

SamplerOptions options_of(const Json& j) {
	SamplerOptions o = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
	const auto read = [&](const char* name, auto& to) { to = j.value(name, to); };
	read("temperature", o.temperature), read("top_k", o.top_k), read("top_p", o.top_p), read("min_p", o.min_p);
	read("top_n_sigma", o.top_n_sigma), read("typical_p", o.typical_p);
	read("dynatemp_range", o.dynatemp_range), read("dynatemp_exponent", o.dynatemp_exponent);
	read("dry_multiplier", o.dry.multiplier), read("dry_base", o.dry.base);
	read("dry_allowed_length", o.dry.allowed), read("dry_penalty_last_n", o.dry.last);
	read("xtc_threshold", o.xtc_threshold);
	o.xtc_probability = j.contains("xtc_threshold") ? 1 : 0;
	return o;
}

std::vector<Candidate> sorted(const Sampler& s) { // without cuts only the first of them is at its place
	std::vector<Candidate> out(s.candidates().begin(), s.candidates().end());
	std::ranges::sort(out, likelier);
	return out;
}

} // namespace

TEST_CASE("sampler: keeps the tokens that llama.cpp's samplers keep, as probable") {
	const Tokenizer tokenizer(Gguf::open(test_root() + "/models/bundled/recall-4m-f16.gguf"));
	std::ifstream file(test_root() + "/tests/golden/sampling/peer.json");
	const Json golden = Json::parse(file);
	size_t changed = 0; // by DRY
	REQUIRE(golden["cases"].size() > 30);
	for (const Json& c : golden["cases"]) {
		CAPTURE(c["options"].dump());
		const std::vector<float> logits = golden["logits"][c["logits"].get<std::string>()];
		SamplerOptions o = options_of(c["options"]);
		Sampler s(o, [&](uint32_t t) { return tokenizer.decode_one(t, t, true); });
		for (const uint32_t t : c["before"]) s.accept(t);
		s.sample(logits);
		CHECK(s.candidates().size() == c["n_kept"].get<size_t>());
		const std::vector<Candidate> have = sorted(s);
		REQUIRE(have.size() >= c["likeliest"].size());
		size_t i = 0;
		for (const Json& kept : c["likeliest"]) {
			const Candidate& x = have[i++];
			CHECK(x.id == kept[0].get<uint32_t>());
			const double p = kept[1].get<double>();
			CHECK(std::abs(x.share / s.total() - p) <= 2e-4 * p + 1e-9);
		}
		o.dry = {};
		Sampler without(o);
		without.sample(logits);
		const auto id = [](const Candidate& x) { return x.id; };
		changed += !std::ranges::equal(have, sorted(without), {}, id, id);
	}
	CHECK(changed >= 10);
}

// The peer has its own random numbers: each step here goes on from the token that it chose.
TEST_CASE("sampler: Mirostat keeps the tokens that llama.cpp's keeps, step by step") {
	std::ifstream file(test_root() + "/tests/golden/sampling/peer.json");
	const Json golden = Json::parse(file);
	size_t n_cases = 0;
	for (const Json& c : golden["steps"]) {
		if (c["kind"] == 3) continue;
		++n_cases;
		const std::vector<float> logits = golden["logits"][c["logits"].get<std::string>()];
		const double temperature = c["temperature"];
		CAPTURE(c["kind"].dump() << " tau " << c["target"].dump() << " of " << c["logits"].dump());
		Mirostat m({c["kind"].get<uint32_t>(), c["target"].get<double>(), c["rate"].get<double>()});
		std::vector<double> logs;
		std::vector<uint32_t> order(logits.size());
		std::iota(order.begin(), order.end(), 0u);
		std::ranges::sort(order, [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
		double sum = 0;
		for (const float l : logits) sum += std::exp(double(l) / temperature);
		for (const uint32_t t : order) logs.push_back(double(logits[t]) / temperature - std::log(sum));
		for (const Json& step : c["steps"]) {
			size_t n = 1;
			if (m.by_rank())
				n = m.ranks(std::span(logs).first(Mirostat::kRanked), logits.size());
			else
				while (n < logs.size() && logs[n] >= m.least_log()) ++n;
			CHECK(n == step["n_kept"].get<size_t>());
			double of_kept = 0, chosen = 0;
			for (size_t i = 0; i < n; ++i) of_kept += std::exp(logs[i]);
			for (size_t i = 0; i < n; ++i)
				if (order[i] == step["chosen"].get<uint32_t>()) chosen = std::exp(logs[i]) / of_kept;
			REQUIRE(chosen > 0);
			m.observe(chosen);
		}
	}
	CHECK(n_cases == 8);
}

TEST_CASE("sampler: adaptive-p gives tokens the probabilities that llama.cpp's gives them, step by step") {
	std::ifstream file(test_root() + "/tests/golden/sampling/peer.json");
	const Json golden = Json::parse(file);
	size_t n_cases = 0;
	for (const Json& c : golden["steps"]) {
		if (c["kind"] != 3) continue;
		++n_cases;
		const std::vector<float> logits = golden["logits"][c["logits"].get<std::string>()];
		const double temperature = c["temperature"];
		CAPTURE(c["target"].dump() << " of " << c["logits"].dump());
		AdaptiveP adaptive({c["target"].get<double>(), c["rate"].get<double>()});
		for (const Json& step : c["steps"]) {
			std::vector<Candidate> all;
			double total = 0;
			for (uint32_t t = 0; t < logits.size(); ++t) {
				all.push_back({logits[t], t, std::exp(double(logits[t]) / temperature)});
				total += all.back().share;
			}
			const double sum = adaptive.reshape(all, total);
			CHECK(step["n_kept"].get<size_t>() == all.size());
			for (const Json& kept : step["likeliest"]) {
				const double p = kept[1].get<double>();
				CHECK(std::abs(all[kept[0].get<size_t>()].share / sum - p) <= 1e-3 * p + 1e-9);
			}
			adaptive.observe(step["chosen"].get<size_t>());
		}
	}
	CHECK(n_cases == 4);
}

TEST_CASE("sampler: adaptive-p's tokens have the probability that was asked for, behind the other cuts") {
	std::vector<float> logits(64);
	for (size_t i = 0; i < logits.size(); ++i) logits[i] = -0.15f * float(i * i % 61);
	for (const double target : {0.02, 0.1}) {
		CAPTURE(target);
		SamplerOptions o = {
		    .temperature = 1, .top_k = 20, .top_p = 1, .min_p = 0, .seed = 3, .adaptive = {target, 0.9}};
		Sampler s(o);
		o.adaptive.target = -1;
		Sampler plain(o);
		double adapted = 0, usual = 0;
		constexpr int n = 2000;
		const auto probability = [&](uint32_t t) { // among the 20 likeliest
			std::vector<float> sorted = logits;
			std::ranges::sort(sorted, std::greater());
			double sum = 0;
			for (size_t i = 0; i < 20; ++i) sum += std::exp(double(sorted[i]));
			return std::exp(double(logits[t])) / sum;
		};
		for (int i = 0; i < n; ++i)
			adapted += probability(s.sample(logits)) / n, usual += probability(plain.sample(logits)) / n;
		CHECK(std::abs(adapted - target) < std::abs(usual - target));
		CHECK(std::abs(adapted - target) < 0.02);
	}
}

TEST_CASE("sampler: Mirostat's answers have the surprise that was asked for; other cuts have no effect") {
	std::ifstream file(test_root() + "/tests/golden/sampling/peer.json");
	const Json golden = Json::parse(file);
	const std::vector<float> logits = golden["logits"]["normal"];
	double sum = 0;
	for (const float l : logits) sum += std::exp(double(l));
	for (const uint32_t version : {1u, 2u})
		for (const double target : {2.0, 4.0}) {
			CAPTURE(version);
			CAPTURE(target);
			SamplerOptions o = {.temperature = 1, .seed = 7, .mirostat = {version, target, 0.1}};
			o.top_k = 1, o.xtc_probability = 1, o.typical_p = 0.1;
			Sampler s(o);
			CHECK(s.wanted() == 0);
			double surprise = 0; // among what is kept
			constexpr int n = 2000;
			for (int i = 0; i < n; ++i) {
				const uint32_t t = s.sample(logits);
				const auto chosen = std::ranges::find(s.candidates(), t, &Candidate::id);
				REQUIRE(chosen != s.candidates().end());
				surprise -= std::log2(chosen->share / s.total()) / n;
			}
			CHECK(std::abs(surprise - target) < 0.1);
			Sampler same(o), filtered(o);
			const TokenFilter all{[](uint32_t) { return true; },
			                      [&] {
				                      static const std::vector<uint64_t> bits(logits.size() / 64, ~uint64_t(0));
				                      return std::span<const uint64_t>(bits);
			                      }};
			for (int i = 0; i < 50; ++i) CHECK(same.sample(logits) == *filtered.sample({.all = logits}, all));
		}
}
