// Every cache policy on every device, through a whole model: the same bits in any chunking and in every run, and
// nothing for KVRUN_CHECK to find.
#include "tests/sequences.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

std::vector<Case> policy_cases() {
	std::vector<Case> r;
	for (const KvPolicy& p : all_policies()) r.push_back({p.name});
	return r;
}

// Its heads can be cut into the groups of every policy.
const std::string kPolicyModel = "llama_q8_0";

} // namespace

TEST_CASE("policies: every policy has the same bits in any chunking of a prompt, and in every run") {
	each_row(policy_cases(), [](Backend&, const Case& c, const TestRow& row) {
		Floats want;
		const bool slow = row.device == "swiftshader"; // there the second run is left to the other devices
		for (uint32_t ubatch : slow ? std::vector<uint32_t>{512, 37} : std::vector<uint32_t>{512, 512, 37}) {
			const auto engine =
			    open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf", 512, ubatch, c.name);
			Session s(*engine);
			const Tokens tokens = random_tokens(340, engine->config().vocab, 6);
			Floats got = greedy_logits(s, std::span(tokens).first(290), 60);
			const Floats more =
			    greedy_logits(s, std::span(tokens).subspan(290), 3); // a second turn, over packed tokens
			got.insert(got.end(), more.begin(), more.end());
			CHECK(std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); }));
			if (want.empty())
				want = got;
			else
				check_same_bits({row.device, row.number, fmt::format("{}, ubatch {}", c.name, ubatch)}, got, want);
		}
	});
}

TEST_CASE("policies: KVRUN_CHECK finds nothing") {
	// decoding long enough for a flush of every policy
	each_row(policy_cases(),
	         [](Backend&, const Case& c, const TestRow& row) { check_sequence(row, kPolicyModel, c.name, 120); });
}
