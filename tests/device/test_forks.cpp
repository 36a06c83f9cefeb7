// Forks and truncation on every device: a fork and its original continue with the bits that each would have alone.
#include "engine/run/batch.h"
#include "tests/device/sequences.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";

} // namespace

TEST_CASE("forks: both go on with the bits they would have had alone, and share what they do not write to") {
	each_row(std::vector<Case>{{"forks"}}, [](Backend&, const Case&, const TestRow& row) {
		const bool slow = row.device == "swiftshader";
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(70, vocab, 1), turn = random_tokens(20, vocab, 2),
		             one = random_tokens(slow ? 10 : 40, vocab, 3), two = random_tokens(slow ? 10 : 40, vocab, 4);
		for (size_t i = 0; i < kShort.size(); ++i) {
			if (slow && i % 3) continue;
			const std::string& policy = kShort[i];
			CAPTURE(policy);
			const auto alone = [&](std::span<const uint32_t> tokens) {
				Session s(*engine, with(policy, 300));
				s.prefill(prompt);
				fed(s, turn);
				Floats x = fed(s, tokens);
				const Floats more = keep(s.prefill(turn));
				x.insert(x.end(), more.begin(), more.end());
				return x;
			};
			const Floats want_one = alone(one), want_two = alone(two);
			std::unique_ptr<Session> second, third;
			Floats got_one, got_two;
			{
				Session first(*engine, with(policy, 300));
				first.prefill(prompt);
				fed(first, turn);
				const size_t used = engine->pool().used_bytes();
				second = first.fork();
				third = second->fork();
				CHECK(engine->pool().used_bytes() == used); // no page has been copied
				CHECK(second->n_tokens() == 90);
				CHECK(std::ranges::equal(second->history(), first.history()));
				for (size_t t = 0; t < one.size(); ++t) { // in one step: they write to the same places
					const SessionRow rows[] = {{&first, one[t]}, {second.get(), two[t]}};
					const std::span<const float> logits = decode(rows);
					got_one.insert(got_one.end(), logits.begin(), logits.begin() + vocab);
					got_two.insert(got_two.end(), logits.begin() + vocab, logits.end());
				}
				const Floats more = keep(first.prefill(turn)), more_two = keep(second->prefill(turn));
				got_one.insert(got_one.end(), more.begin(), more.end());
				got_two.insert(got_two.end(), more_two.begin(), more_two.end());
			}
			check_same_bits({row.device, row.number, policy + ", first"}, got_one, want_one);
			check_same_bits({row.device, row.number, policy + ", second"}, got_two, want_two);
			second.reset();
			Floats got = fed(*third, one); // after the others are gone
			const Floats more = keep(third->prefill(turn));
			got.insert(got.end(), more.begin(), more.end());
			check_same_bits({row.device, row.number, policy + ", third"}, got, want_one);
			third.reset();
			CHECK(engine->pool().used_bytes() == 0);
		}
	});
}

TEST_CASE("forks: behind a prompt that follows few tokens, a fork has the attention that its tokens received") {
	each_row(std::vector<Case>{{"h2o,recent_keep=8,flush=120,budget=24"}, {"mikv,recent_keep=8,flush=120"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, kModel);
		         const uint32_t vocab = engine->config().vocab;
		         const Tokens first = random_tokens(10, vocab, 1), second = random_tokens(90, vocab, 2),
		                      more = random_tokens(60, vocab, 3);
		         Session s(*engine, with(c.name, 300)), other(*engine, with(c.name, 300));
		         for (Session* one : {&s, &other}) { // the other's sums lie behind
			         one->prefill(first);
			         one->decode(3);
		         }
		         fed(other, random_tokens(20, vocab, 4));
		         s.prefill(second);
		         const auto fork = s.fork();
		         check_same_bits(row, fed(*fork, more), fed(s, more)); // beyond the next flush
	         });
}

TEST_CASE("forks: a session goes back where the policy can, says where it can, and to checkpoints") {
	each_row(std::vector<Case>{{"back"}}, [](Backend&, const Case&, const TestRow& row) {
		const bool slow = row.device == "swiftshader";
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(70, vocab, 1), answer = random_tokens(50, vocab, 2),
		             retry = random_tokens(20, vocab, 3);
		for (size_t i = 0; i < kShort.size(); ++i) {
			if (slow && i % 3) continue;
			const std::string& policy = kShort[i];
			CAPTURE(policy);
			Session fresh(*engine, with(policy, 300));
			fresh.prefill(prompt);
			const Floats want = fed(fresh, retry);

			Session s(*engine, with(policy, 300));
			s.prefill(prompt);
			fed(s, std::span(answer).first(1));
			if (s.exact_position(70) == 70) { // no token before it was compressed
				s.truncate(70);
				CHECK(s.n_tokens() == 70);
				check_same_bits({row.device, row.number, policy + ", one token back"}, fed(s, retry), want);
			}
			s.reset();
			s.prefill(prompt);
			fed(s, answer);
			const uint32_t exact = s.exact_position(70);
			if (policy == "fp16") CHECK(exact == 70);
			if (exact != 70) {
				CHECK(exact == 0);
				CHECK_THROWS_WITH_AS(s.truncate(70), doctest::Contains("nearest position before is 0"), Error);
				CHECK(s.n_tokens() == 120);
			}
			CHECK_THROWS_AS(s.truncate(121), Error);

			SessionOptions kept = with(policy, 300);
			kept.checkpoints = 2;
			Session c(*engine, kept);
			c.prefill(prompt);
			fed(c, answer);
			for (int again = 0; again < 2; ++again) {
				REQUIRE(c.exact_position(70) == 70);
				c.truncate(70);
				CHECK(std::ranges::equal(c.history(), prompt));
				check_same_bits({row.device, row.number, policy + ", from a checkpoint"}, fed(c, retry), want);
			}
		}
	});
}

TEST_CASE("forks: a prompt that begins like the one before is read from where it differs") {
	each_row(std::vector<Case>{{"common"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kSmallModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens system = random_tokens(40, vocab, 1), first = random_tokens(12, vocab, 2),
		             second = random_tokens(15, vocab, 3);
		const auto with_system = [&](const Tokens& t) {
			Tokens all = system;
			all.insert(all.end(), t.begin(), t.end());
			return all;
		};
		Session want(*engine, with("fp16", 200)), s(*engine, with("fp16", 200));
		want.prefill(system);
		const Floats logits = keep(want.prefill(second));
		CHECK(s.keep_common(with_system(first)) == 0);
		s.prefill(with_system(first));
		s.decode(5);
		CHECK(s.keep_common(with_system(second)) == 40);
		CHECK(s.n_tokens() == 40);
		const Floats got = keep(s.prefill(second));
		CHECK(relative_error(got, logits) < 5e-3);       // the system prompt was read together with `first`
		CHECK(s.keep_common(with_system(second)) == 54); // one is always left to read
		s.prefill(std::span(second).last(1));
		CHECK(s.n_tokens() == 55);
		fill_with_noise(s, 20);
		CHECK(s.n_tokens() == 75);
		CHECK(s.history().back() == kNoToken);
		CHECK(s.keep_common(with_system(second)) == 54);
	});
}

TEST_CASE("forks: answers to one prompt read it once, and each is what it is alone") {
	each_row(std::vector<Case>{{"answers"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens before = random_tokens(20, vocab, 1), prompt = random_tokens(70, vocab, 2);
		const auto options = [](uint64_t seed) {
			GenerateOptions o;
			o.n = 30, o.sampling.seed = seed, o.sampling.temperature = 2, o.sampling.repeat_penalty = 1.2;
			o.ignore_end = true;
			return o;
		};
		for (size_t i = 0; i < kShort.size(); i += row.device == "swiftshader" ? 4 : 1) {
			const std::string& policy = kShort[i];
			CAPTURE(policy);
			std::vector<Tokens> alone;
			for (uint64_t seed = 0; seed < 3; ++seed) {
				Session s(*engine, with(policy, 300));
				s.prefill(before);
				alone.push_back(generate(s, prompt, options(seed)).tokens);
			}
			CHECK(alone[0] != alone[1]);
			Session first(*engine, with(policy, 300));
			first.prefill(before);
			const auto second = first.fork(), third = first.fork();
			Batch batch(*engine);
			const uint32_t a = batch.add(first, prompt, options(0));
			size_t pieces = 0, used = 0;
			const GenerateHooks count{.prefill = [&](const Prefill&) { return ++pieces > 0; },
			                          .token =
			                              [&](uint32_t) {
				                              if (!used) used = engine->pool().used_bytes();
			                              }};
			const uint32_t b = batch.add_fork(*second, a, options(1));
			const uint32_t c = batch.add_fork(*third, a, options(2), count); // the last to begin
			while (batch.step()) {}
			CHECK(pieces == 0); // it reads no prompt itself
			const Tokens got[] = {batch.take(a).tokens, batch.take(b).tokens, batch.take(c).tokens};
			for (size_t k = 0; k < 3; ++k) CHECK(got[k] == alone[k]);
			{
				Session one(*engine, with(policy, 300));
				const size_t others = engine->pool().used_bytes();
				one.prefill(before);
				one.prefill(prompt);
				CHECK(used == engine->pool().used_bytes() - others); // at the first token all pages are shared
			}
		}
	});
}

TEST_CASE("forks: answers to a prompt that is not read to its end") {
	each_row(std::vector<Case>{{"ends"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const Tokens prompt = random_tokens(70, engine->config().vocab, 2);
		GenerateOptions o;
		o.n = 5, o.ignore_end = true;
		Session first(*engine, with("kivi2", 300)), stranger(*engine, with("kivi2", 300));
		const auto second = first.fork(), third = first.fork();
		Batch batch(*engine);
		const uint32_t a = batch.add(first, prompt, o);
		CHECK_THROWS_AS(batch.add_fork(stranger, a, o), Error);
		CHECK_THROWS_AS(batch.add_fork(*second, a + 1, o), Error);
		const uint32_t b = batch.add_fork(*second, a, o), c = batch.add_fork(*third, a, o);
		CHECK(batch.take(c).reason == StopReason::Cancelled); // one of the forks ends; the others continue
		CHECK_FALSE(batch.done(b));
		CHECK(batch.take(a).reason == StopReason::Cancelled);
		CHECK(batch.done(b));
		CHECK(batch.take(b).reason == StopReason::Cancelled);
		CHECK(second->n_tokens() == 0);

		const uint32_t failing = batch.add(
		    first, prompt, o, {.prefill = [](const Prefill&) -> bool { throw Error(Code::OutOfMemory, "no room"); }});
		const uint32_t with_it = batch.add_fork(*second, failing, o);
		while (batch.step()) {}
		CHECK(batch.take(failing).error);
		CHECK(batch.take(with_it).error);

		const uint32_t read = batch.add(first, prompt, o);
		while (first.n_tokens() < 70) batch.step();
		batch.step();
		CHECK_THROWS_AS(batch.add_fork(*second, read, o), Error); // too late
		while (batch.step()) {}
		CHECK(batch.take(read).tokens.size() == 5);
	});
}
