// Latent attention (MLA): one latent per token, which is keys and values, and a rotated key. Cuts of a prompt, steps of
// several sequences, forks, files and rewinds have the bits of a sequence that was read in one go; policies pack
// latents.
#include "engine/run/session_file.h"
#include "tests/device/golden.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

// Queries of the stream and of a vector of their own; softmax and sigmoid of experts, in groups; as wide as real ones.
const std::vector<Case> kLatent = {{"deepseek2_lite"}, {"deepseek2_v2"}, {"deepseek2_v3"}, {"deepseek2_wide"}};
const std::vector<Case> kTwo = {{"deepseek2_v3"}, {"deepseek2_wide"}};

} // namespace

TEST_CASE("latent: any cut of a prompt has the same bits, decode steps between turns the right logits") {
	each_row(kLatent, [](Backend&, const Case& c, const TestRow& row) {
		check_cuts(c.name, row);
		check_blocks(c.name, row.device);
	});
}

TEST_CASE("latent: rows of one step have the bits each has alone; forks, undo and files too") {
	const TempFolder folder;
	each_row(kTwo, [&](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		const auto vocab = engine->config().vocab;
		for (const std::string policy : {"fp16", "turbo3,recent_keep=0,flush=32,group=32,sinks=0"}) {
			CAPTURE(policy);
			constexpr uint32_t kSequences = 3, kSteps = 3;
			std::vector<Tokens> next;
			std::vector<Floats> alone;
			std::vector<std::unique_ptr<Session>> sessions;
			for (uint32_t i = 0; i < kSequences; ++i) {
				const Tokens prompt = random_tokens(30 + 40 * i, vocab, 7 + i);
				next.push_back(random_tokens(kSteps, vocab, 70 + i));
				Session s(*engine, with(policy, 200));
				s.prefill(prompt);
				alone.push_back(fed(s, next[i]));
				sessions.push_back(std::make_unique<Session>(*engine, with(policy, 200)));
				sessions[i]->prefill(prompt);
			}
			const auto fork = sessions[0]->fork();
			const std::vector<Floats> got = fed_together(sessions, next);
			for (uint32_t i = 0; i < kSequences; ++i)
				check_same_bits({row.device, row.number, c.name}, got[i], alone[i]);
			check_same_bits({row.device, row.number, c.name + " fork"}, fed(*fork, next[0]), alone[0]);
			const std::string path = folder.path / (row.device + c.name + ".kvs");
			save_session(*sessions[1], path, {});
			const auto back = restore_session(*engine, path);
			const Tokens more = random_tokens(3, vocab, 5);
			const Floats want = fed(*sessions[1], more);
			check_same_bits({row.device, row.number, c.name + " file"}, fed(*back, more), want);
			const uint32_t to = sessions[1]->n_tokens() - 3;
			REQUIRE(sessions[1]->exact_position(to) == to);
			sessions[1]->truncate(to);
			check_same_bits({row.device, row.number, c.name + " undo"}, fed(*sessions[1], more), want);
		}
	});
}

TEST_CASE("latent: a token takes its latent and its rotated key, once") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, Golden(c.name).model, 16);
		const Config& cfg = engine->config();
		const Latent& t = cfg.layers[0].latent;
		const KvPlan plan = make_device_plan(parse_policy("fp16"), engine->kv_shape());
		CHECK(bytes_at(plan, 1000).f16 == size_t(1000) * cfg.n_layers * 2 * (t.rank + t.rope_dim));
		const KvPlan two = make_device_plan(parse_policy("rtn2,group=32"), engine->kv_shape());
		const LayerPlan& L = two.layers[0];
		CHECK(L.tier[int(Tier::Regular)].fmt.k.bits == 2);
		CHECK(L.tier[int(Tier::Regular)].fmt.v.bits == 8);
		const KvPlan four = make_device_plan(parse_policy("turbo3,rope.bits=4"), engine->kv_shape());
		CHECK(four.layers[0].tier[int(Tier::Regular)].fmt.v.bits == 4);
	});
}

TEST_CASE("latent: policies pack latents; more bits are nearer to f16") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 64);
		const Tokens prompt = random_tokens(150, engine->config().vocab, 4),
		             next = random_tokens(6, engine->config().vocab, 9);
		const auto answer = [&](const std::string& policy) {
			Session s(*engine, with(policy, 300));
			s.prefill(prompt);
			return fed(s, next);
		};
		const Floats exact = answer("fp16");
		const std::string window = ",recent_keep=0,flush=32";
		for (const std::string family :
		     {"rtn{},group=32,rope.bits=8", "kivi{},group=32", "turbo{},group=32,sinks=0",
		      "turbo{},group=32,sinks=0,param_bits=16,mean=off,rotate=off", "kivi{},group=32,param_bits=8"}) {
			double last = 1e9;
			for (const int bits : {2, 4}) {
				const std::string policy = fmt::format(fmt::runtime(family + window), bits);
				CAPTURE(policy);
				const double error = relative_error(answer(policy), exact);
				CHECK(error > 1e-5);
				CHECK(error < 0.7 * last);
				last = error;
			}
			CHECK(last < 0.12);
		}
		CHECK(relative_error(answer("rtn8,group=32" + window), exact) < 0.02);
		CHECK(relative_error(answer("kivi2,bits=3,group=32" + window), exact) < 0.4);
		for (const std::string policy : {"mixed4/1", "logquant", "xquant", "asymkv1/1", "streaming"})
			CHECK(relative_error(answer(policy), exact) < 2);
	});
}

TEST_CASE("latent: what is not there is refused by name") {
	each_row(std::vector<Case>{{"deepseek2_v3"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, Golden(c.name).model, 16);
		for (const auto& [policy, why] :
		     std::vector<std::pair<std::string, std::string>>{{"zipcache", "ranks tokens"},
		                                                      {"h2o", "ranks tokens"},
		                                                      {"mikv", "ranks tokens"},
		                                                      {"specache2", "fetches tokens"},
		                                                      {"rtn4,balance=on", "balances keys"}}) {
			CAPTURE(policy);
			CHECK_THROWS_WITH_AS(Session(*engine, with(policy, 64)), doctest::Contains(why.c_str()), Error);
		}
		CHECK_THROWS_WITH_AS(make_device_plan(parse_policy("turbo3,rope.bits=4"), KvShape{2, 2, 64}),
		                     doctest::Contains("rope.bits is of models with latent attention"), Error);
	});
}
