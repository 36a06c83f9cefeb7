// Entries of blocks (DeepSeek V4) under every kind of policy, over several blocks and prompts; what is refused.
// That logits are the model's is tested in models, cuts, forks and files in recurrent.
#include "engine/run/memory_plan.h"
#include "engine/run/session_file.h"
#include "tests/device/golden.h"
#include "tests/support/compare.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

constexpr const char* kModel = "deepseek4";

// 8 bits: results are nearly those of f16, if rows attend to the same entries. Codes of groups, channels and codebooks,
// tokens in order and not.
const std::vector<Case> kPolicies = {{"rtn8,recent_keep=8,flush=8"},
                                     {"kivi2,bits=8,group=32,recent_keep=32,flush=32"},
                                     {"logquant,W=10,bits=8,group=32"},
                                     {"turbo8/8,group=32,recent_keep=8,flush=32"}};

// Logits of the last row of each part of a text, and of each token behind them.
Floats logits_of(Session& s, const Golden& g, std::span<const uint32_t> parts) {
	Floats got;
	uint32_t at = 0;
	for (const uint32_t n : parts) {
		const std::span<const float> last = s.prefill(g.part(at, n));
		got.insert(got.end(), last.begin(), last.end());
		at += n;
	}
	const Floats next = fed(s, g.part(at));
	got.insert(got.end(), next.begin(), next.end());
	return got;
}

} // namespace

TEST_CASE("entries: packed ones are read where a policy keeps them, in prompts and steps") {
	each_row(kPolicies, [&](Backend&, const Case& c, const TestRow& row) {
		const Golden g(kModel);
		const auto engine = open_engine(row.device, g.model, 48);
		const uint32_t parts[] = {150, 101, 3};
		Session f16(*engine, with("fp16", 300)), packed(*engine, with(c.name, 300));
		const Floats want = logits_of(f16, g, parts);
		INFO(row.device);
		CHECK(relative_difference(logits_of(packed, g, parts), want) < 1e-2);
		CHECK(packed.kv_bytes().codes > 0);
		CHECK(packed.kv_bytes().total() < f16.kv_bytes().total());
	});
}

TEST_CASE("entries: any parts of a text have the logits of the model, also in steps across ends of blocks") {
	each_row(std::vector<Case>{{kModel}}, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 32);
		const size_t vocab = engine->config().vocab;
		for (const std::vector<uint32_t>& parts : {std::vector<uint32_t>{126}, {3, 253}, {1, 4, 5, 130}, {276, 2}}) {
			Session s(*engine, with("fp16", 280));
			uint32_t at = 0;
			for (const uint32_t n : parts) {
				const Floats last = keep(s.prefill(g.part(at, n)));
				at += n;
				CHECK(g.error(at - 1, last) < logits_tolerance(engine->backend(), c.name, /*decode=*/false));
			}
			const uint32_t steps = row.device == "cpu" ? uint32_t(g.tokens.size()) - at : 8;
			const Floats next = fed(s, g.part(at, std::min(steps, uint32_t(g.tokens.size()) - at)));
			CHECK(next.size() % vocab == 0);
			CHECK(g.error(at, next) < logits_tolerance(engine->backend(), c.name, /*decode=*/true));
		}
	});
}

TEST_CASE("entries: packed sessions are saved, restored and forked, and go back to checkpoints") {
	const TempFolder folder;
	each_row(std::vector<Case>{{"kivi2,group=32,recent_keep=32,flush=32"}},
	         [&](Backend&, const Case& c, const TestRow& row) {
		         const Golden g(kModel);
		         const auto engine = open_engine(row.device, g.model, 64);
		         SessionOptions o = with(c.name, 300);
		         o.checkpoints = 1;
		         Session s(*engine, o);
		         s.prefill(g.part(0, 255));
		         fed(s, g.part(255, 2));
		         const std::string path = (folder.path / (row.device + ".kvs")).string();
		         save_session(s, path, {});
		         const auto fork = s.fork(), back = restore_session(*engine, path);
		         const Floats want = fed(s, g.part(257, 20));
		         check_same_bits({row.device, row.number, "fork"}, fed(*fork, g.part(257, 20)), want);
		         check_same_bits({row.device, row.number, "restored"}, fed(*back, g.part(257, 20)), want);
		         CHECK(s.exact_position(260) == 255);
		         s.truncate(255);
		         fed(s, g.part(255, 2));
		         check_same_bits({row.device, row.number, "checkpoint"}, fed(s, g.part(257, 20)), want);
	         });
}

TEST_CASE("entries: what is refused, and what a plan counts") {
	const Golden g(kModel);
	const auto engine = open_engine("cpu", g.model);
	for (const auto& [policy, what] : {std::pair{"zipcache", "ranks"}, {"specache2,fetch_mode=sync", "fetches"}}) {
		INFO(policy);
		try {
			Session s(*engine, with(policy, 280));
			FAIL("not refused");
		} catch (const Error& e) {
			CHECK(e.code == Code::Unsupported);
			CHECK(std::string(e.what()).find(what) != std::string::npos);
		}
	}
	Session s(*engine, with("fp16", 280));
	CHECK(s.step_tokens(4) == 1);
	CHECK_FALSE(s.why_one_token().empty());
	s.prefill(g.part(0, 280));
	const KvPlan plan = plan_of_model(engine->cache_layers(), parse_policy("fp16"), 280);
	CHECK(plan.block == 4);
	CHECK(bytes_at(plan, 280).index == s.kv_bytes().index);
	CHECK(s.entries()[0]->n_tokens() == 70);
	CHECK(s.entries()[1]->n_tokens() == 2);
	CHECK(bytes_at(plan, 280).total() == s.entries()[0]->bytes().total());
	CHECK(bytes_at(plan, 283).total() == bytes_at(plan, 280).total());
	CHECK(tokens_that_fit(plan, bytes_at(plan, 280).total(), 1000) >= 283);
	CHECK(tokens_that_fit(plan, bytes_at(plan, 280).total(), 282) == 282);
}
