// Layers with a window, sliding or in chunks: after turns, decode steps, forks, truncations and files the logits are
// those that transformers computes for the whole text at once. Prompts are three windows long.
#include "engine/run/session_file.h"
#include "tests/device/golden.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

// Layers of both kinds; all with a window.
const std::vector<Case> kWindowed = {
    {"gemma2"},          {"gemma3"},      {"gpt_oss"},         {"cohere2"},       {"afmoe"},
    {"exaone4_windows"}, {"phi3_window"}, {"gemma4"},          {"gemma4_shared"}, {"gemma4_layer_inputs"},
    {"gemma3n"},         {"llama4"},      {"laguna"},          {"muse_glimmer"},  {"spark2_5"},
    {"step35"},          {"granite_swa"}, {"granite_swa_moe"}, {"maple"},         {"mimo2"},
    {"plamo3"}};
constexpr uint32_t kWindow = 8;

} // namespace

TEST_CASE("windows: turns of any length, and decode steps between them") {
	each_row(kWindowed, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, /*ubatch=*/5);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		for (const size_t first : {size_t(1), size_t(kWindow - 1), size_t(kWindow), size_t(kWindow + 1), size_t(17)}) {
			CAPTURE(first);
			Session s(*engine, with("fp16", 64));
			CHECK(g.error(0, prompt_logits(s, std::span(g.tokens).first(first))) < most);
			const std::span<const float> one = s.decode(g.tokens[first]);
			CHECK(g.error(first, {one.begin(), one.end()}) < most);
			CHECK(g.error(first + 1, prompt_logits(s, std::span(g.tokens).subspan(first + 1))) < most);
		}
	});
}

TEST_CASE("windows: a context that is cut into blocks") {
	each_row(kWindowed, [](Backend&, const Case& c, const TestRow& row) { check_blocks(c.name, row.device); });
}

TEST_CASE("windows: forks and rewinds") {
	each_row(kWindowed, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/false);
		SessionOptions o = with("fp16", 64);
		o.checkpoints = 2;
		Session s(*engine, o);
		const std::span<const float> last = s.prefill(std::span(g.tokens).first(13));
		CHECK(g.error(12, {last.begin(), last.end()}) < most); // no other row's logits are computed
		const auto fork = s.fork();
		for (uint32_t i = 0; i < 6; ++i) s.decode(3 + i); // another text
		CHECK(g.error(13, prompt_logits(*fork, std::span(g.tokens).subspan(13))) < most);
		// Truncation cannot go back to forgotten tokens, but to the checkpoint.
		CHECK(s.exact_position(17) == 17); // tokens are dropped together, 8 at a time
		CHECK(s.exact_position(15) == 13);
		CHECK_THROWS_AS(s.truncate(15), Error);
		CHECK(s.keep_common(g.tokens) == 13);
		CHECK(g.error(13, prompt_logits(s, std::span(g.tokens).subspan(13))) < most);
		// Within the first window nothing is forgotten.
		s.reset();
		s.prefill(std::span(g.tokens).first(3));
		for (uint32_t i = 0; i < 3; ++i) s.decode(g.tokens[3 + i]);
		s.decode(5);
		CHECK(s.exact_position(6) == 6);
		s.truncate(6);
		CHECK(g.error(6, prompt_logits(s, std::span(g.tokens).subspan(6))) < most);
		CHECK(s.exact_position(5) == 3); // the checkpoint after the first prompt
	});
}

TEST_CASE("windows: a restored session goes on with the same bits") {
	const TempFolder folder;
	each_row(kWindowed, [&](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const std::string path = folder.path / (row.device + c.name + ".kvs");
		const auto engine = open_engine(row.device, g.model, 16);
		Session s(*engine, with("fp16", 64));
		s.prefill(std::span(g.tokens).first(14));
		s.decode(g.tokens[14]);
		save_session(s, path, {});
		const Floats want = prompt_logits(s, std::span(g.tokens).subspan(15));
		CHECK(g.error(15, want) < logits_tolerance(engine->backend(), c.name, /*decode=*/false));
		const auto back = restore_session(*engine, path);
		CHECK(back->kv_bytes().total() > 0);
		check_same_bits({row.device, row.number, c.name}, prompt_logits(*back, std::span(g.tokens).subspan(15)), want);
	});
}

TEST_CASE("windows: several sequences in a step, of lengths inside and beyond the window") {
	each_row(kWindowed, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		Session a(*engine, with("fp16", 64)), b(*engine, with("fp16", 64));
		a.prefill(std::span(g.tokens).first(2));
		b.prefill(std::span(g.tokens).first(19));
		for (uint32_t i = 0; i < 5; ++i) {
			const SessionRow rows[] = {{&a, g.tokens[2 + i]}, {&b, g.tokens[19 + i]}};
			const std::span<const float> logits = decode(rows);
			const size_t vocab = logits.size() / 2;
			CHECK(g.error(2 + i, {logits.begin(), logits.begin() + ptrdiff_t(vocab)}) < most);
			CHECK(g.error(19 + i, {logits.begin() + ptrdiff_t(vocab), logits.end()}) < most);
		}
	});
}

TEST_CASE("windows: after a step back logits are those of the text up to there") {
	each_row(kWindowed, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		Session s(*engine, with("fp16", 64));
		s.prefill(std::span(g.tokens).first(17));
		for (const uint32_t n : {18u, 20u, 19u, 21u}) { // tokens of the text; behind them one that is wrong
			s.truncate(std::min(n - 1, s.n_tokens()));
			while (s.n_tokens() + 1 < n) s.decode(g.tokens[s.n_tokens()]);
			const std::span<const float> logits = s.decode(g.tokens[n - 1]);
			CHECK_MESSAGE(g.error(n - 1, {logits.begin(), logits.end()}) < most, n << " tokens");
			s.decode((g.tokens[n] + 1) % engine->config().vocab);
			s.truncate(n);
		}
	});
}

TEST_CASE("windows: a layer keeps a window and a few tokens more, whatever the policy of the others") {
	each_row(std::vector<Case>{{"gemma3"}, {"gemma4_shared"}}, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		for (const std::string policy : {"fp16", "kivi2,recent_keep=8,flush=32", "streaming,sinks=1,recent=3"}) {
			CAPTURE(policy);
			Session s(*engine, with(policy, 200));
			s.prefill(random_tokens(100, engine->config().vocab, 4));
			for (uint32_t i = 0; i < 5; ++i) s.decode(3 + i);
			for (uint32_t l = 0; l < engine->config().n_layers; ++l) {
				const std::vector<uint8_t> tiers = s.tiers(l, 0);
				REQUIRE(tiers.size() == 105);
				if (engine->config().layers[l].window)
					for (size_t t = 0; t < 105; ++t) {
						if (t + kWindow >= 105) CHECK(tiers[t] == 0);
						if (t + 2 * kWindow < 105) CHECK(tiers[t] == 3);
					}
			}
			CHECK(s.window_plan() != nullptr);
		}
		CHECK_THROWS_WITH_AS(Session(*engine, with("specache2,recent_keep=8,fetch=24,fetch_mode=spec", 64)),
		                     doctest::Contains(engine->cache_layers().shares() ? "share keys" : "sliding windows"),
		                     Error);
	});
}

TEST_CASE("windows: auto chooses for the memory that windows and states leave") {
	each_row(std::vector<Case>{{"gemma3"}, {"qwen35"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions o;
		o.model = kGolden + "tiny/" + c.name + ".gguf";
		o.backend = select_test_device(row.device);
		// of 256 tokens less than f16, windows and states take, and more than f16 alone
		o.kv_budget = c.name == "gemma3" ? 50 << 10 : 60 << 10;
		const auto engine = Engine::open(o);
		for (const uint32_t ctx : {0u, 256u}) {
			Session s(*engine, with("auto", ctx));
			CHECK(s.ctx() == 256);
			CHECK(s.policy_text() != "fp16");
			s.prefill(random_tokens(250, engine->config().vocab, 5));
			CHECK(s.n_tokens() == 250);
		}
	});
}
