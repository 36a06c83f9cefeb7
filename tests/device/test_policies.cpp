// Every cache policy on every device, through whole models: the same bits in any chunking and in every run, no
// differences under KVRUN_CHECK, and the results of the cpu backend.
#include "engine/kv_device/readback.h"
#include "tests/device/sequences.h"
#include <cstdlib>
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

// KVRUN_TEST_EVERY counts these like rows; KVRUN_TEST_ROW applies to the table only.
std::vector<std::string> wanted(const std::vector<std::string>& policies) {
	std::vector<std::string> r;
	for (size_t i = 0; i < policies.size(); ++i)
		if (std::getenv("KVRUN_TEST_ROW") || row_wanted(i)) r.push_back(policies[i]);
	return r;
}

constexpr double kError = 5e-3; // of logits, relative to the largest: a few codes lie between two values

// Logits (1 + steps, vocab) of a prompt and of each of the `steps` tokens that follow it.
Floats logits_of(Engine& engine, const std::string& policy, std::span<const uint32_t> tokens, size_t steps) {
	Session s(engine, with(policy, 200));
	const size_t prompt = tokens.size() - steps;
	Floats all = keep(s.prefill(tokens.first(prompt)));
	for (const uint32_t t : tokens.subspan(prompt)) {
		const std::span<const float> step = s.decode(t);
		all.insert(all.end(), step.begin(), step.end());
	}
	const KvPlan& plan = s.plan();
	INFO(policy);
	if (plan.fill[size_t(Tier::Regular)] != Fill::None) CHECK(s.kv_bytes().codes > 0); // the window does not hold all
	if (!plan.keeps_all) CHECK(s.kv_bytes().f16 < plan.f16_bytes(tokens.size()));
	return all;
}

// Checks that comparisons of these logits are sensitive: policies differ by more than the tolerance, fewer bits by
// more.
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

TEST_CASE("policies: keys are balanced by the first prompt, and not at all without one") {
	const std::vector<Case> some{{"mikv,recent_keep=8,flush=16"}, {"rtn4,recent_keep=8,flush=16,balance=on"}};
	each_row(some, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf");
		const uint32_t vocab = engine->config().vocab;
		const Tokens tokens = random_tokens(40, vocab, 1), prompt = random_tokens(80, vocab, 2);
		Session fresh(*engine, with(c.name, 200));
		const Floats want = fed(fresh, tokens);
		CHECK(std::ranges::all_of(want, [](float x) { return std::isfinite(x); }));
		Session used(*engine, with(c.name, 200));
		used.prefill(prompt);
		used.reset();
		check_same_bits(row, fed(used, tokens), want); // not by the prompt that is gone
		used.reset();
		used.prefill(std::span(prompt).first(12));
		CHECK(used.exact_position(5) == 0); // the other tokens have had their part in the balance
		CHECK(used.exact_position(12) == 12);
	});
}

TEST_CASE("policies: every policy has the same bits in any chunking of a prompt, and in every run") {
	each_row(policy_cases(), [](Backend&, const Case& c, const TestRow& row) {
		Floats want;
		// On slow devices there is no second run, and there are fewer tokens, but still more than a window.
		const bool slow = row.device == "swiftshader";
		const size_t first = slow ? 220 : 290, steps = slow ? 24 : 60, more_tokens = slow ? 20 : 50;
		for (uint32_t ubatch : slow ? std::vector<uint32_t>{512, 37} : std::vector<uint32_t>{512, 512, 37}) {
			const auto engine = open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf", ubatch);
			Session s(*engine, with(c.name, 512));
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
	for (const auto& list : {kShort, kFetching})
		for (const std::string& p : list) tested.insert(parse_policy(p).name);
	for (const KvPolicy& p : all_policies()) CHECK_MESSAGE(tested.count(p.name), p.name);
	each_row(
	    std::vector<Case>{{"llama"}, {"qwen2"}, {"qwen3"}, {"phi3"}}, [](Backend&, const Case& c, const TestRow& row) {
		    const size_t steps = row.device == "swiftshader" ? 12 : 36; // slow, as below
		    const auto cpu = open_engine("cpu", tiny(c)), whole = open_engine(row.device, tiny(c), 512, /*f32=*/true);
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
		    const auto pieces = open_engine(row.device, tiny(c), 19, /*f32=*/true);
		    for (const std::string& policy : kShort)
			    check_same_bits({row.device, row.number, c.name + ", " + policy},
			                    logits_of(*pieces, policy, tokens, steps), got[policy]);
	    });
}

TEST_CASE(
    "policies: with softcaps of scores, sinks, heads of 512 channels, as on the cpu, and KVRUN_CHECK finds nothing") {
	each_row(
	    std::vector<Case>{{"gemma2"}, {"gpt_oss"}, {"gemma4_wide"}}, [](Backend&, const Case& c, const TestRow& row) {
		    const auto cpu = open_engine("cpu", tiny(c)), device = open_engine(row.device, tiny(c), 19, /*f32=*/true);
		    const Tokens tokens = random_tokens(90, cpu->config().vocab, 3);
		    for (const char* policy :
		         {"kivi2,recent_keep=8,flush=32", "turbo,group=32,recent_keep=8,flush=32", "zipcache,flush=25",
		          "logquant,W=10,k.group=32", "h2o,recent_keep=8,flush=16,budget=24"}) {
			    const double error =
			        relative_error(logits_of(*device, policy, tokens, 20), logits_of(*cpu, policy, tokens, 20));
			    CHECK_MESSAGE(error < kError, policy << ": " << error);
		    }
		    check_sequence(row, c.name, "zipcache,flush=25", 30);
	    });
}

TEST_CASE("policies: one side in f16 and the other packed is refused before anything is read") {
	const auto engine = open_engine("cpu", tiny({"llama"}));
	for (const char* policy : {"rtn4,k.bits=16", "turbo16/2", "kivi2,v.bits=16"})
		CHECK_THROWS_WITH_AS(Session(*engine, with(policy, 200)), doctest::Contains("give 8 bits instead"), Error);
}

TEST_CASE("policies: score=key_length keeps the tokens whose keys are longest, or shortest, of a prompt and of later "
          "flushes") {
	each_row(std::vector<Case>{{"large"}, {"small"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "swiftshader" && row.number > 0) return; // slow
		const auto engine = open_engine(row.device, tiny({"llama"}));
		const Tokens tokens = random_tokens(140, engine->config().vocab, 21);
		const uint32_t n_prompt = 100, flush = 16;
		Session exact(*engine, with("fp16", 200));
		Session s(*engine,
		          with("mikv,score=key_length,key_length=" + c.name + ",ratio=0.25,recent_keep=8,flush=16", 200));
		for (Session* x : {&exact, &s}) x->prefill(std::span(tokens).first(n_prompt));
		const KvShape& shape = s.plan().shape;
		const auto lengths = [&] { // by position: (n_layers, n_kv_heads, n)
			std::vector<std::vector<std::vector<double>>> all;
			for (const LayerValues& v : read_back(engine->backend(), exact.seq())) {
				auto& layer = all.emplace_back(shape.n_kv_heads);
				for (size_t i = 0; i < v.k.size(); i += shape.head_dim) {
					double squares = 0;
					for (uint32_t k = 0; k < shape.head_dim; ++k) squares += double(v.k[i + k]) * v.k[i + k];
					layer[i / shape.head_dim % shape.n_kv_heads].push_back(squares);
				}
			}
			return all;
		};
		const auto prompt = lengths();
		const uint32_t judged = n_prompt - 8;
		for (uint32_t l = 0; l < shape.n_layers; ++l)
			for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
				std::vector<double> order(prompt[l][h].begin(), prompt[l][h].begin() + judged);
				std::sort(order.begin(), order.end());
				const uint32_t n = uint32_t(std::nearbyint(0.25 * judged));
				const double edge = c.name == "small" ? order[n - 1] : order[judged - n];
				const std::vector<uint8_t> tier = s.seq().cache().tiers(l, h);
				for (uint32_t t = 0; t < judged; ++t) {
					CAPTURE(t);
					const double x = prompt[l][h][t];
					if (std::abs(x / edge - 1) < 1e-4) continue; // rounding may change the result
					CHECK((tier[t] == 1) == (c.name == "small" ? x < edge : x > edge));
				}
			}
		for (uint32_t i = 0; i < flush + 4; ++i) s.decode(tokens[n_prompt + i]); // one flush more
		uint32_t kept = 0;
		const std::vector<uint8_t> tier = s.seq().cache().tiers(0, 0);
		for (uint32_t t = 0; t < judged + flush; ++t) kept += tier[t] == 1;
		CHECK(kept == uint32_t(std::nearbyint(0.25 * (judged + flush))));
	});
}

TEST_CASE("policies: a cancelled prompt leaves the sequence as it was") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "swiftshader" && row.number > 0) return; // slow
		const auto engine = open_engine(row.device, tiny(c));
		const Tokens tokens = random_tokens(200, engine->config().vocab, 12);
		const std::span<const uint32_t> first = std::span(tokens).first(72), turn = std::span(tokens).subspan(72, 20),
		                                given_up = std::span(tokens).last(60);
		for (const std::string& policy : wanted(kShort)) {
			Session kept(*engine, with(policy, 300)), disturbed(*engine, with(policy, 300));
			const auto both = [&](auto f) {
				Floats x = f(kept);
				check_same_bits({row.device, row.number, c.name + ", " + policy}, f(disturbed), x);
			};
			const auto cancel = [&](double share) { // after this share of the prompt's work, in small pieces
				const uint32_t n = disturbed.n_tokens();
				const size_t bytes = disturbed.kv_bytes().total();
				{
					Prefill p(disturbed, given_up);
					while (p.progress() < share) REQUIRE(!p.step(1e-6));
					CHECK_THROWS_AS(disturbed.decode(1), Error); // until it is done or cancelled
				}
				CHECK(disturbed.n_tokens() == n);
				CHECK(disturbed.kv_bytes().total() == bytes);
			};
			cancel(0.01); // of an empty sequence
			both([&](Session& s) { return greedy_logits(s, first, 30); });
			cancel(0.5);
			cancel(0.97); // after the moves of every layer but the last
			both([&](Session& s) { return greedy_logits(s, turn, 20); });
			cancel(0.4); // between flushes, with sums of attention on the device
			both([&](Session& s) { return greedy_logits(s, turn, 20); });
		}
	});
}

TEST_CASE("policies: fp16 has the bits of a cache without a policy, and so has every policy of 16 bits") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, tiny(c));
		const Tokens tokens = random_tokens(60, engine->config().vocab, 8);
		Session s(*engine); // no policy given
		Floats want = keep(s.prefill(std::span(tokens).first(50)));
		for (const uint32_t t : std::span(tokens).subspan(50)) {
			const std::span<const float> step = s.decode(t);
			want.insert(want.end(), step.begin(), step.end());
		}
		Session beside(*engine, with("kivi2", 200)); // another policy in the same memory
		for (const char* policy : {"fp16", "rtn4,bits=16"}) {
			beside.prefill(tokens);
			check_same_bits({row.device, row.number, policy}, logits_of(*engine, policy, tokens, 10), want);
			beside.reset();
		}
	});
}

TEST_CASE("policies: every policy on the bundled model, as on the cpu") {
	const std::string model = test_root() + "/models/bundled/recall-4m-f16.gguf";
	each_row(std::vector<Case>{{"bundled"}}, [&](Backend&, const Case&, const TestRow& row) {
		const auto cpu = open_engine("cpu", model), engine = open_engine(row.device, model, 512, /*f32=*/true);
		std::ifstream text(test_root() + "/models/bundled/record40.txt");
		const std::string record((std::istreambuf_iterator<char>(text)), {});
		Tokens tokens = engine->tokenizer().encode(record);
		REQUIRE(tokens.size() > 84);
		tokens.resize(84);
		for (const std::string& policy : wanted(kShort)) {
			const Floats got = logits_of(*engine, policy, tokens, 4), want = logits_of(*cpu, policy, tokens, 4);
			const double error = relative_error(got, want);
			CHECK_MESSAGE(error < kError, row_text(row) << "\n" << policy << ": " << error);
			CHECK(best(got) == best(want));
		}
	});
}

TEST_CASE("policies: the first step after a prompt that fills the window judges it, by sums that are all zero yet") {
	each_row(std::vector<Case>{{"zipcache"}, {"mikv"}, {"h2o"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + kPolicyModel + ".gguf");
		const Select select = parse_policy(c.name).select;
		const uint32_t full = select.sinks + select.recent_keep + select.flush;
		for (uint32_t n = full - 1; n <= full + 1; ++n) {
			CAPTURE(n);
			Session s(*engine, with(c.name, 512));
			const Tokens tokens = random_tokens(n, engine->config().vocab, 6);
			const Floats got = greedy_logits(s, tokens, 3);
			CHECK(std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); }));
			CHECK(s.n_tokens() == n + 3);
		}
	});
}
