// Models with mixtures of experts: in turns, batches, forks and files a token has the bits that it has alone, whatever
// experts the others choose; every operation is compared with the cpu's.
#include "engine/run/session_file.h"
#include "tests/device/golden.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

// Fused tensors and a gate of the shared MLP; dense layers first, sigmoid, a bias of the choice, a scale; factors of
// experts, together with a dense MLP.
const std::vector<Case> kMixtures = {{"qwen2moe"}, {"glm4moe"}, {"gemma4_moe"}};

} // namespace

TEST_CASE("mixtures: any cut of a prompt has the same bits, decode steps between turns the right logits") {
	each_row(kMixtures, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto whole = open_engine(row.device, g.model, 64), cut = open_engine(row.device, g.model, /*ubatch=*/5);
		Session a(*whole, with("fp16", 64)), b(*cut, with("fp16", 64));
		check_same_bits({row.device, row.number, c.name}, prompt_logits(b, g.tokens), prompt_logits(a, g.tokens));
		b.reset();
		const double most = logits_tolerance(cut->backend(), c.name, /*decode=*/true);
		CHECK(g.error(0, prompt_logits(b, std::span(g.tokens).first(9))) < most);
		CHECK(g.error(9, fed(b, std::span(g.tokens).subspan(9, 4))) < most);
		CHECK(g.error(13, prompt_logits(b, std::span(g.tokens).subspan(13))) < most);
	});
}

TEST_CASE("mixtures: rows of one step have the bits each has alone") {
	each_row(kMixtures, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		constexpr uint32_t kSequences = 5, kSteps = 4;
		std::vector<Tokens> prompts, next;
		std::vector<Floats> alone;
		std::vector<std::unique_ptr<Session>> sessions;
		for (uint32_t i = 0; i < kSequences; ++i) {
			prompts.push_back(random_tokens(3 + 4 * i, engine->config().vocab, 7 + i));
			next.push_back(random_tokens(kSteps, engine->config().vocab, 70 + i));
			Session s(*engine, with("fp16", 64));
			s.prefill(prompts[i]);
			alone.push_back(fed(s, next[i]));
			sessions.push_back(std::make_unique<Session>(*engine, with("fp16", 64)));
			sessions[i]->prefill(prompts[i]);
		}
		const std::vector<Floats> got = fed_together(sessions, next);
		for (uint32_t i = 0; i < kSequences; ++i) check_same_bits({row.device, row.number, c.name}, got[i], alone[i]);
	});
}

TEST_CASE("mixtures: where one row of a prompt takes longer than a piece should, several go together") {
	each_row(kMixtures, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 64);
		Session s(*engine, with("fp16", 64)), whole(*engine, with("fp16", 64));
		const Tokens prompt = random_tokens(48, engine->config().vocab, 3);
		Prefill p(s, prompt);
		uint32_t pieces = 0;
		for (bool done = false; !done; ++pieces) {
			engine->pace() = 1e-3; // work per second: no row fits
			done = p.step();
		}
		// Of each layer a few for its rows and one for their place in the cache, then the logits; not one per row.
		CHECK(pieces <= engine->config().n_layers * 8 + 2);
		check_same_bits({row.device, row.number, c.name}, keep(p.logits()), keep(whole.prefill(prompt)));
	});
}

TEST_CASE("mixtures: forks and restored sessions go on with the same bits") {
	const TempFolder folder;
	each_row(kMixtures, [&](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const std::string path = folder.path / (row.device + c.name + ".kvs");
		const auto engine = open_engine(row.device, g.model, 16);
		Session s(*engine, with("fp16", 64));
		s.prefill(std::span(g.tokens).first(12));
		s.decode(g.tokens[12]);
		const auto fork = s.fork();
		save_session(s, path, {});
		const auto back = restore_session(*engine, path);
		fed(s, random_tokens(3, engine->config().vocab, 5)); // another text
		const Floats want = fed(*fork, std::span(g.tokens).subspan(13));
		CHECK(g.error(13, want) < logits_tolerance(engine->backend(), c.name, /*decode=*/true));
		check_same_bits({row.device, row.number, c.name}, fed(*back, std::span(g.tokens).subspan(13)), want);
	});
}

TEST_CASE("mixtures: every operation is what the cpu computes, in a prompt and in decode steps") {
	each_row(kMixtures, [](Backend&, const Case& c, const TestRow& row) { check_sequence(row, c.name, "fp16", 5); });
}
