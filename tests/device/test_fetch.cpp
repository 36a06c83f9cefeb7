// Policies that fetch f16 tokens from host memory, on every device: what is chosen, and that what is fetched is what the
// model computes with.
#include "engine/cache/fetch.h"
#include "tests/device/sequences.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <numeric>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";
const std::string kWindow = ",recent_keep=8,flush=32"; // so short that most of a hundred tokens are packed

// Greedy tokens and the logits after a prompt and each of n steps on them; `tokens` decides when it is given.
Floats follow(Session& s, std::span<const uint32_t> prompt, std::span<const uint32_t> tokens) {
	Floats all = keep(s.prefill(prompt));
	for (const uint32_t t : tokens) {
		const std::span<const float> step = s.decode(t);
		all.insert(all.end(), step.begin(), step.end());
	}
	return all;
}

} // namespace

TEST_CASE("fetch: a policy that fetches every packed token computes what an f16 cache does") {
	const std::vector<Case> policies = {{"kivi1" + kWindow},
	                                    {"kivi2" + kWindow},
	                                    {"kivi2,fetch_mode=sync" + kWindow},
	                                    {"rtn2" + kWindow},
	                                    {"zipcache,flush=24"},
	                                    {"mikv,recent_keep=8,flush=16"},
	                                    {"xquant,recent_keep=8,flush=32,group=32"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(100, vocab, 3), tokens = random_tokens(40, vocab, 4);
		Session exact(*engine), all(*engine, with(c.name + ",fetch=4096")), plain(*engine, with(c.name));
		const Floats want = follow(exact, prompt, tokens);
		const double error = relative_error(follow(all, prompt, tokens), want);
		INFO(c.name << " error " << error);
		CHECK(error < 5e-3);
		CHECK(relative_error(follow(plain, prompt, tokens), want) > 2 * error); // packing alone does show
		const FetchStats& stats = all.seq().fetch()->stats();
		CHECK(stats.steps == tokens.size());
		CHECK(stats.share / double(stats.steps) == doctest::Approx(1).epsilon(1e-3));
	});
}
