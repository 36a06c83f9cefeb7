// Every cache policy on every device, through whole models: the same bits in any chunking and in every run, nothing for
// KVRUN_CHECK to find, and what the cpu backend computes.
#include "tests/device/sequences.h"
#include <doctest/doctest.h>
#include <fstream>
#include <map>
#include <set>

using namespace kvrun;

namespace {

std::vector<Case> policy_cases() {
	std::vector<Case> r;
	for (const KvPolicy& p : all_policies()) r.push_back({p.name});
	return r;
}

// Its heads can be cut into the groups of every policy.
const std::string kPolicyModel = "llama_q8_0";

// Policies with windows so short that tokens are packed, and evicted, in a hundred of them.
const std::vector<std::string> kShort = {"fp16",
                                         "rtn8",
                                         "rtn4",
                                         "rtn2",
                                         "kivi4,recent_keep=8,flush=32",
                                         "kivi2,recent_keep=8,flush=32",
                                         "kivi1,recent_keep=8,flush=32",
                                         "logquant,W=10,k.group=32",
                                         "xquant,recent_keep=0,flush=32,k.group=32",
                                         "asymkv,recent_keep=8,flush=32",
                                         "streaming,sinks=4,recent=33",
                                         "zipcache,flush=25",
                                         "mikv,recent_keep=8,flush=16",
                                         "h2o,recent_keep=8,flush=16,budget=24"};

constexpr double kError = 5e-3; // of logits, relative to the largest: a few codes lie at the edge between two

// Logits (1 + steps, vocab) of a prompt and of each of the `steps` tokens that follow it.
Floats logits_of(Engine& engine, const std::string& policy, std::span<const uint32_t> tokens, size_t steps) {
	engine.set_kv(parse_policy(policy));
	Session s(engine);
	const size_t prompt = tokens.size() - steps;
	Floats all = keep(s.prefill(tokens.first(prompt)));
	for (const uint32_t t : tokens.subspan(prompt)) {
		const std::span<const float> step = s.decode(t);
		all.insert(all.end(), step.begin(), step.end());
	}
	const KvPlan& plan = engine.plan();
	INFO(policy);
	if (plan.fill[size_t(Tier::Regular)] != Fill::None) CHECK(s.kv_bytes().codes > 0); // the window is not all there is
	if (!plan.keeps_all) CHECK(s.kv_bytes().f16 < plan.f16_bytes(tokens.size()));
	return all;
}

// What comparisons of these logits would notice: policies differ by more than the tolerance, and fewer bits by more.
void check_order(std::map<std::string, Floats>& logits) {
	std::map<std::string, double> error; // against the f16 cache, by name
	for (const auto& [policy, x] : logits) error[parse_policy(policy).name] = relative_error(x, logits["fp16"]);
	for (const auto& e : error)
		if (e.first != "fp16" && e.first != "rtn8") CHECK_MESSAGE(e.second > kError, e.first << " " << e.second);
	CHECK(error["rtn8"] < kError);
	CHECK(error["rtn8"] < error["rtn4"]);
	CHECK(error["rtn4"] < error["rtn2"]);
	CHECK(error["kivi4"] < error["kivi2"]);
	CHECK(error["kivi2"] < error["kivi1"]);
}

std::string tiny(const Case& c) { return kGolden + "tiny/" + c.name + ".gguf"; }

} // namespace

TEST_CASE("policies: every policy has the same bits in any chunking of a prompt, and in every run") {
	each_row(policy_cases(), [](Backend&, const Case& c, const TestRow& row) {
		Floats want;
		// There the second run is left to other devices, and there are fewer tokens, if still more than a window.
		const bool slow = row.device == "swiftshader";
		const size_t first = slow ? 220 : 290, steps = slow ? 24 : 60, more_tokens = slow ? 20 : 50;
		for (uint32_t ubatch : slow ? std::vector<uint32_t>{512, 37} : std::vector<uint32_t>{512, 512, 37}) {
			const auto engine =
			    open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf", 512, ubatch, c.name);
			Session s(*engine);
			const Tokens tokens = random_tokens(uint32_t(first + more_tokens), engine->config().vocab, 6);
			Floats got = greedy_logits(s, std::span(tokens).first(first), uint32_t(steps));
			const Floats more =
			    greedy_logits(s, std::span(tokens).subspan(first), 3); // a second turn, over packed tokens
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

TEST_CASE("policies: every policy on a model of every family, in any chunking, as on the cpu") {
	std::set<std::string> tested;
	for (const std::string& p : kShort) tested.insert(parse_policy(p).name);
	for (const KvPolicy& p : all_policies()) CHECK_MESSAGE(tested.count(p.name), p.name);
	each_row(std::vector<Case>{{"llama"}, {"qwen2"}, {"qwen3"}, {"phi3"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const size_t steps = row.device == "swiftshader" ? 12 : 36; // slow, as below
		         const auto cpu = open_engine("cpu", tiny(c), 200), whole = open_engine(row.device, tiny(c), 200);
		         const Tokens tokens = random_tokens(108, cpu->config().vocab, 3);
		         std::map<std::string, Floats> want, got;
		         for (const std::string& policy : kShort) {
			         want[policy] = logits_of(*cpu, policy, tokens, steps);
			         got[policy] = logits_of(*whole, policy, tokens, steps);
			         const double error = relative_error(got[policy], want[policy]);
			         CHECK_MESSAGE(error < kError, policy << ": " << error);
		         }
		         check_order(want);
		         if (row.device == "swiftshader" && row.number > 0) return; // slow, and the other test has chunks too
		         const auto pieces = open_engine(row.device, tiny(c), 200, 19);
		         for (const std::string& policy : kShort)
			         check_same_bits({row.device, row.number, c.name + ", " + policy},
			                         logits_of(*pieces, policy, tokens, steps), got[policy]);
	         });
}

TEST_CASE("policies: a cancelled prompt leaves the sequence as it was") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "swiftshader" && row.number > 0) return; // slow
		const auto engine = open_engine(row.device, tiny(c), 300);
		const Tokens tokens = random_tokens(200, engine->config().vocab, 12);
		const std::span<const uint32_t> first = std::span(tokens).first(72), turn = std::span(tokens).subspan(72, 20),
		                                given_up = std::span(tokens).last(60);
		for (const std::string& policy : kShort) {
			engine->set_kv(parse_policy(policy));
			Session kept(*engine), disturbed(*engine);
			const auto both = [&](auto f) {
				Floats x = f(kept);
				check_same_bits({row.device, row.number, c.name + ", " + policy}, f(disturbed), x);
			};
			const auto cancel = [&](uint32_t layers) {
				PrefillHooks hooks;
				hooks.progress = [&](uint32_t done, uint32_t) { return done < layers; };
				const uint32_t n = disturbed.n_tokens();
				const size_t bytes = disturbed.kv_bytes().total();
				CHECK(disturbed.prefill(given_up, hooks).empty());
				CHECK(disturbed.n_tokens() == n);
				CHECK(disturbed.kv_bytes().total() == bytes);
			};
			cancel(1); // of an empty sequence
			both([&](Session& s) { return greedy_logits(s, first, 30); });
			cancel(1);
			cancel(engine->config().n_layers);
			both([&](Session& s) { return greedy_logits(s, turn, 20); });
			cancel(1); // and between flushes, with sums of attention under way
			both([&](Session& s) { return greedy_logits(s, turn, 20); });
		}
	});
}

TEST_CASE("policies: fp16 has the bits of a cache without a policy, and so has every policy of 16 bits") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions plain;
		plain.model = tiny(c), plain.device = select_test_device(row.device), plain.ctx = 200;
		const auto engine = Engine::open(plain);
		const Tokens tokens = random_tokens(60, engine->config().vocab, 8);
		Session s(*engine);
		Floats want = keep(s.prefill(std::span(tokens).first(50)));
		for (const uint32_t t : std::span(tokens).subspan(50)) {
			const std::span<const float> step = s.decode(t);
			want.insert(want.end(), step.begin(), step.end());
		}
		const auto other = open_engine(row.device, tiny(c), 200, 512, "kivi2"); // and the switch leaves nothing behind
		for (const char* policy : {"fp16", "rtn4,bits=16"})
			check_same_bits({row.device, row.number, policy}, logits_of(*other, policy, tokens, 10), want);
	});
}

TEST_CASE("policies: every policy on the bundled model, as on the cpu") {
	const std::string model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
	each_row(std::vector<Case>{{"bundled"}}, [&](Backend&, const Case&, const TestRow& row) {
		const auto cpu = open_engine("cpu", model, 128), engine = open_engine(row.device, model, 128);
		std::ifstream text(KVRUN_SOURCE_DIR "/models/bundled/record40.txt");
		const std::string record((std::istreambuf_iterator<char>(text)), {});
		Tokens tokens = engine->tokenizer().encode(record);
		REQUIRE(tokens.size() > 84);
		tokens.resize(84);
		for (const std::string& policy : kShort) {
			const Floats got = logits_of(*engine, policy, tokens, 4), want = logits_of(*cpu, policy, tokens, 4);
			const double error = relative_error(got, want);
			CHECK_MESSAGE(error < kError, row_text(row) << "\n" << policy << ": " << error);
			CHECK(best(got) == best(want));
		}
	});
}

TEST_CASE("policies: the first step after a prompt that fills the window judges it, by sums that are all zero yet") {
	each_row(std::vector<Case>{{"zipcache"}, {"mikv"}, {"h2o"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf", 512, 512, c.name);
		const Select& select = engine->plan().policy.select;
		const uint32_t full = select.sinks + select.recent_keep + select.flush;
		for (uint32_t n = full - 1; n <= full + 1; ++n) {
			CAPTURE(n);
			Session s(*engine);
			const Tokens tokens = random_tokens(n, engine->config().vocab, 6);
			const Floats got = greedy_logits(s, tokens, 3);
			CHECK(std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); }));
			CHECK(s.n_tokens() == n + 3);
		}
	});
}
