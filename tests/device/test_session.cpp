// Sequences on every device: the same bits in any chunking, with any other sequences and in every run; limits. The
// results of whole models are tested in test_models.cpp.
#include "engine/core/npy.h"
#include "engine/run/sampler.h"
#include "tests/device/sequences.h"
#include "tests/support/assets.h"
#include <deque>
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("session: a prompt in two turns has the logits of one prompt, and both are transformers'") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3"}, {"phi3_longrope.long"}, {"llama_q5_k"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const NpyArray ids = npy_read(kGolden + "tiny/" + c.name + ".tokens.npy"),
		                        logits = npy_read(kGolden + "tiny/" + c.name + ".logits.npy");
		         const Tokens tokens(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
		         const auto engine =
		             open_engine(row.device, kGolden + "tiny/" + c.name.substr(0, c.name.find('.')) + ".gguf");
		         const size_t vocab = engine->config().vocab;
		         for (const size_t first : {size_t(1), tokens.size() / 2, tokens.size() - 1}) {
			         Session s(*engine);
			         s.prefill(std::span(tokens).first(first));
			         const Floats rest = prompt_logits(s, std::span(tokens).subspan(first));
			         CHECK(relative_error(rest, logits.as<float>().subspan(first * vocab)) <
			               logits_tolerance(engine->backend(), c.name, /*decode=*/false));
		         }
	         });
}

TEST_CASE("session: a layer of a decode step with few partial states is six dispatches on GPUs") {
	each_row(std::vector<Case>{{"fp16"}}, [](Backend& backend, const Case& c, const TestRow& row) {
		if (!backend.info().merges_few) return; // software drivers do not merge
		EngineOptions opt;
		opt.model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
		opt.backend = select_test_device(row.device);
		opt.backend.submit_ms = 1e6; // otherwise a slow dispatch is split
		const auto engine = Engine::open(opt);
		Session s(*engine, with(c.name, 64));
		s.prefill(std::vector<uint32_t>{1, 2, 3});
		engine->backend().time_ops(true);
		engine->backend().op_times(/*reset=*/true);
		(void)s.decode(4);
		uint32_t n = 0;
		for (const OpTime& t : engine->backend().op_times(/*reset=*/true))
			if (!t.kernels.empty()) n += t.calls;
		if (n) CHECK(n == 6 * engine->config().n_layers + 2); // 0: no timestamps; embedding and logits
	});
}

TEST_CASE("session: where the device lists the largest logits, they are the same, and so is what is sampled") {
	each_row(std::vector<Case>{{"fp16"}}, [](Backend& backend, const Case& c, const TestRow& row) {
		if (!backend.info().lists_candidates) return; // it always reads all logits
		const auto engine = open_engine(row.device, "synth:llama-3.1-8b,layers=2,dim=256,hidden=256,vocab=9000:q8_0");
		const uint32_t vocab = engine->config().vocab;
		Session a(*engine, with(c.name, 64)), b(*engine, with(c.name, 64));
		a.prefill(std::vector<uint32_t>{1, 2, 3});
		b.prefill(std::vector<uint32_t>{4, 5});
		const auto whole = a.fork();
		SamplerOptions options;
		options.seed = 5;
		Sampler from_list(options), from_all(options), greedy({.temperature = 0}), plain({.temperature = 0});
		uint32_t token = 6;
		for (int i = 0; i < 12; ++i) {
			// Rows that request their candidates, all logits, more candidates than there are blocks, and the likeliest
			// one.
			const uint32_t few = i % 2 ? from_list.wanted() : greedy.wanted();
			const SessionRow rows[] = {{&a, token, few}, {&b, token, i % 3 == 0 ? 0 : i % 3 == 1 ? 100u : 1u}};
			const auto logits = decode_step(rows);
			REQUIRE(logits.size() == 2);
			CHECK(logits[1].all.size() == (i % 3 == 2 ? 0 : vocab));
			REQUIRE(logits[0].all.empty());
			REQUIRE(logits[0].top.size() >= few);
			CHECK(logits[0].top.size() < 512);
			const std::vector<Logit> top(logits[0].top.begin(), logits[0].top.end());
			const uint32_t next = i % 2 ? from_list.sample(logits[0]) : greedy.sample(logits[0]);
			const std::span<const float> all = whole->decode(token);
			for (const Logit& l : top) CHECK(all[l.id] == l.value);
			CHECK(next == (i % 2 ? from_all.sample(all) : plain.sample(all)));
			token = next;
		}
	});
}

// Mean divergence, nats per row, of distributions over the vocabulary: x from ref.
static double divergence(std::span<const float> x, std::span<const float> ref, size_t vocab) {
	const auto log_sum = [&](const float* row) {
		const float top = *std::max_element(row, row + vocab);
		double sum = 0;
		for (size_t i = 0; i < vocab; ++i) sum += std::exp(double(row[i]) - double(top));
		return double(top) + std::log(sum);
	};
	double all = 0;
	for (size_t at = 0; at < ref.size(); at += vocab) {
		const double sum = log_sum(&ref[at]), sum_x = log_sum(&x[at]);
		for (size_t i = at; i < at + vocab; ++i)
			all += std::exp(double(ref[i]) - sum) * (double(ref[i]) - sum - double(x[i]) + sum_x);
	}
	return all / double(ref.size() / vocab);
}

// Matrix units round factors of prompts to f16; integer dot products round queries and weights to int8 when a second
// turn attends to packed tokens. The loss of a policy against f16 is at least 0.001.
TEST_CASE("session: matrix units and integer dot products have the next tokens that f32 has, over older pages too") {
	const char *f16 = "fp16", *packed = "kivi2";
	each_row(std::vector<Case>{{f16}, {packed}}, [&](Backend& backend, const Case& c, const TestRow& row) {
		EngineOptions opt;
		opt.model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
		opt.backend = select_test_device(row.device);
		const bool rounds = c.name == f16 ? backend.info().half_matmul : backend.info().int8_attend;
		if (!rounds || opt.backend.f32_matmul) return; // there is nothing to compare
		const std::string record = file_text(KVRUN_SOURCE_DIR "/models/bundled/record40.txt");
		Floats logits[2];
		size_t vocab = 0;
		for (const bool f32 : {false, true}) {
			opt.backend.f32_matmul = f32;
			const auto engine = Engine::open(opt);
			vocab = engine->config().vocab;
			const std::vector<uint32_t> all = engine->tokenizer().encode(record, {});
			const std::span<const uint32_t> tokens = std::span(all).first(std::min<size_t>(all.size(), 300));
			Session s(*engine, with(c.name, 400));
			Floats& out = logits[f32];
			out = prompt_logits(s, tokens.first(200));
			const Floats second = prompt_logits(s, tokens.subspan(200));
			out.insert(out.end(), second.begin(), second.end());
		}
		REQUIRE(logits[0].size() == logits[1].size());
		const double nats = divergence(logits[0], logits[1], vocab);
		MESSAGE(row.device << ", " << c.name << ": " << nats << " nats per token");
		CHECK(nats > 0); // otherwise both runs used f32
		CHECK(nats < 1e-4);
	});
}

TEST_CASE("session: the same bits in any chunking of a prompt, and in every run") {
	each_row(std::vector<Case>{{"chunking"}}, [](Backend&, const Case&, const TestRow& row) {
		Floats want, want_after;
		for (uint32_t ubatch : {512u, 512u, 1u, 7u, 32u}) {
			const auto engine = open_engine(row.device, kSmallModel, ubatch);
			const Tokens tokens = random_tokens(100, engine->config().vocab, 5);
			Session s(*engine);
			const Floats all = prompt_logits(s, tokens);
			Floats after; // the cache after them gives the same answers
			uint32_t token = best(std::span(all).last(engine->config().vocab));
			for (int i = 0; i < 8; ++i) {
				const std::span<const float> step = s.decode(token);
				after.insert(after.end(), step.begin(), step.end());
				token = best(step);
			}
			if (want.empty()) {
				want = all, want_after = after;
				continue;
			}
			const TestRow r{row.device, row.number, fmt::format("ubatch {}", ubatch)};
			check_same_bits(r, all, want);
			check_same_bits(r, after, want_after);
		}
	});
}

TEST_CASE("T73 session: a sequence has the same bits alone and beside others, fresh, reset and in poisoned memory") {
	each_row(std::vector<Case>{{"company"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kSmallModel);
		const uint32_t vocab = engine->config().vocab, n = 40;
		std::vector<Tokens> prompts = {random_tokens(33, vocab, 1), random_tokens(5, vocab, 2),
		                               random_tokens(70, vocab, 3)};
		std::vector<Floats> alone;
		{
			Session s(*engine);
			for (const Tokens& p : prompts) {
				s.reset();
				alone.push_back(greedy_logits(s, p, n));
			}
		}
		std::deque<Session> together;
		std::vector<Floats> got;
		for (const Tokens& p : prompts) got.push_back(keep(together.emplace_back(*engine).prefill(p)));
		for (uint32_t i = 0; i < n; ++i) {
			std::vector<SessionRow> rows;
			for (size_t k = 0; k < prompts.size(); ++k)
				rows.push_back({&together[k], best(std::span(got[k]).last(vocab))});
			const std::span<const float> logits = decode(rows);
			for (size_t k = 0; k < prompts.size(); ++k)
				got[k].insert(got[k].end(), logits.begin() + std::ptrdiff_t(k * vocab),
				              logits.begin() + std::ptrdiff_t((k + 1) * vocab));
		}
		for (size_t k = 0; k < prompts.size(); ++k)
			check_same_bits({row.device, row.number, fmt::format("sequence {} of 3", k)}, got[k], alone[k]);

		setenv("KVRUN_POISON", "1", 1); // reads of unwritten memory become NaN
		const auto poisoned = open_engine(row.device, kSmallModel);
		unsetenv("KVRUN_POISON");
		Session s(*poisoned);
		check_same_bits({row.device, row.number, "poisoned memory"}, greedy_logits(s, prompts[2], n), alone[2]);
	});
}

TEST_CASE("session: KVRUN_CHECK finds nothing on a whole model") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3"}, {"phi3"}, {"llama_q4_k"}},
	         [](Backend&, const Case& c, const TestRow& row) { check_sequence(row, c.name, "fp16"); });
}

TEST_CASE("session: what does not fit is refused, and nothing is appended") {
	const std::vector<Case> policies = {{"fp16"},
	                                    {"kivi2,recent_keep=0,flush=32"},
	                                    {"mikv,recent_keep=8,flush=16"},
	                                    {"zipcache,flush=25"},
	                                    {"streaming,recent=16"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kSmallModel);
		const uint32_t vocab = engine->config().vocab;
		Session s(*engine, with(c.name, 48));
		const Tokens tokens = random_tokens(49, vocab, 4);
		CHECK_THROWS_WITH_AS(s.prefill(tokens), doctest::Contains("49 tokens"), Error); // T34
		CHECK(s.n_tokens() == 0);
		CHECK_THROWS_AS(s.prefill({}), Error); // T35
		CHECK_THROWS_AS(s.prefill(Tokens{vocab}), Error);
		CHECK_THROWS_AS(s.decode(vocab), Error);
		s.prefill(std::span(tokens).first(47));
		s.decode(1);
		CHECK(s.n_tokens() == 48);
		CHECK_THROWS_WITH_AS(s.decode(1), doctest::Contains("48"), Error); // T36
		CHECK(s.n_tokens() == 48);
		CHECK_THROWS_WITH_AS(s.prefill(std::span(tokens).first(1)), doctest::Contains("room for 0 of 48"), Error);
		CHECK(s.n_tokens() == 48);
		s.reset();
		CHECK(s.n_tokens() == 0);
		CHECK(engine->pool().used_bytes() == 0);
		const Floats alone = greedy_logits(s, std::span(tokens).first(1), 40); // T35: BOS and nothing else
		CHECK(s.n_tokens() == 41);
		CHECK(std::all_of(alone.begin(), alone.end(), [](float x) { return std::isfinite(x); }));
		s.reset();
		CHECK_THROWS_AS(s.prefill(tokens), Error); // refused prompts change nothing
		check_same_bits(row, greedy_logits(s, std::span(tokens).first(1), 40), alone);
	});
}

TEST_CASE("session: a cache whose budget is spent is refused, and what was there goes on") {
	each_row(std::vector<Case>{{"kivi2,recent_keep=0,flush=32"}, {"mikv,recent_keep=8,flush=16"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         EngineOptions o;
		         o.model = kSmallModel, o.backend = select_test_device(row.device), o.kv_budget = 24 << 10;
		         const auto engine = Engine::open(o);
		         const Tokens tokens = random_tokens(1000, engine->config().vocab, 4);
		         Session s(*engine, with(c.name, 4000)), other(*engine, with(c.name, 4000));
		         const Floats before = greedy_logits(s, std::span(tokens).first(20), 5);
		         const size_t used = engine->pool().used_bytes();
		         CHECK_THROWS_WITH_AS(other.prefill(tokens), doctest::Contains("--kv"), Error);
		         CHECK(engine->pool().used_bytes() == used);
		         CHECK(other.n_tokens() == 0);
		         const uint64_t fits = tokens_that_fit(s.plan(), o.kv_budget, s.ctx());
		         s.prefill(std::span(tokens).first(fits - s.n_tokens() - 30));
		         std::string said;
		         for (uint32_t n = 0; n < 3000 && said.empty(); ++n) try {
				         (void)s.decode(n % 256);
			         } catch (const Error& e) {
				         CHECK(e.code == Code::OutOfMemory);
				         said = e.what();
			         }
		         CHECK_MESSAGE(said.find("budgeted") != said.npos, said);
		         CHECK(s.n_tokens() > fits - 30); // kept: only the token without room is missing
		         CHECK(engine->pool().used_bytes() <= o.kv_budget);
		         s.reset();
		         check_same_bits(row, greedy_logits(s, std::span(tokens).first(20), 5), before);
	         });
}
