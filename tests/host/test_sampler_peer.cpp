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
	read("xtc_threshold", o.xtc_threshold), read("min_keep", o.min_keep);
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
		CAPTURE(c["kind"].dump() + " tau " + c["target"].dump() + " of " + c["logits"].dump());
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
		CAPTURE(c["target"].dump() + " of " + c["logits"].dump());
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
	const std::vector<double> probable = {0.6, 0.25, 0.1, 0.05};
	std::vector<float> logits(64, -30); // top-k excludes these
	for (size_t i = 0; i < probable.size(); ++i) logits[i * 16] = float(std::log(probable[i]));
	for (const double target : {0.1, 0.5}) {
		CAPTURE(target);
		Sampler s({.temperature = 1, .top_k = 4, .top_p = 1, .min_p = 0, .seed = 3, .adaptive = {target, 0.9}});
		double mean = 0; // plain sampling has 0.43
		constexpr int n = 2000;
		for (int i = 0; i < n; ++i) {
			const uint32_t t = s.sample(logits);
			REQUIRE(t % 16 == 0);
			mean += probable[t / 16] / n;
		}
		CHECK(std::abs(mean - target) < 0.04);
	}
}
