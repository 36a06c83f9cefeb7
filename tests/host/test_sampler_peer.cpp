// Samplers beside llama.cpp's: what they keep of the same logits, behind the same tokens.
#include "engine/run/sampler.h"
#include "models/gguf.h"
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>

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
