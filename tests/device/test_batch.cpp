// Several sequences at once on every device, whatever their policies: each has the tokens and bits that it has alone;
// the end of one does not affect the others.
#include "engine/run/batch.h"
#include "tests/device/sequences.h"
#include <deque>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

struct Request {
	std::string policy;
	Tokens prompt;
	uint32_t n, joins; // tokens of the answer; step of the batch at which it begins
};

std::vector<Request> requests(uint32_t n, uint32_t vocab) {
	const std::string policies[] = {"fp16",
	                                "kivi2,recent_keep=8,flush=32",
	                                "mikv,recent_keep=8,flush=16",
	                                "kivi2,recent_keep=8,flush=32",
	                                "zipcache,flush=25",
	                                "logquant,W=10,k.group=32",
	                                "h2o,recent_keep=8,flush=16,budget=24",
	                                "xquant,vm=0,recent_keep=0,flush=32,k.group=32"};
	std::vector<Request> out;
	for (uint32_t i = 0; i < n; ++i)
		out.push_back({policies[i % 8], random_tokens(3 + (i * 29) % 90, vocab, i + 1), 5 + (i * 13) % 40, i * 2});
	return out;
}

GenerateOptions greedy(uint32_t n) {
	GenerateOptions o;
	o.n = n;
	o.sampling.temperature = 0;
	o.ignore_end = true;
	return o;
}

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";

} // namespace

TEST_CASE(
    "batch: 1, 2, 3 and 8 sequences of different lengths and policies, joining and leaving, answer as each alone") {
	each_row(std::vector<Case>{{"batch"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const std::vector<Request> all = requests(8, engine->config().vocab);
		std::vector<Tokens> alone;
		for (const Request& r : all) {
			Session s(*engine, with(r.policy, 200));
			alone.push_back(generate(s, r.prompt, greedy(r.n)).tokens);
			CHECK(alone.back().size() == r.n);
		}
		for (const uint32_t n : {1u, 2u, 3u, 8u}) {
			CAPTURE(n);
			std::deque<Session> sessions;
			Batch batch(*engine);
			std::vector<uint32_t> ids;
			for (uint32_t step = 0; ids.size() < n || batch.n_active(); ++step) {
				while (ids.size() < n && all[ids.size()].joins <= step) {
					const Request& r = all[ids.size()];
					ids.push_back(
					    batch.add(sessions.emplace_back(*engine, with(r.policy, 200)), r.prompt, greedy(r.n)));
				}
				batch.step();
			}
			for (uint32_t i = 0; i < n; ++i) {
				const GenerateResult r = batch.take(ids[i]);
				CHECK(r.reason == StopReason::Length);
				CHECK_MESSAGE(r.tokens == alone[i], row_text(row) << "\nsequence " << i << ", " << all[i].policy);
			}
		}
	});
}

TEST_CASE("batch: logits of rows of any policies in one step are the bits each has alone") {
	each_row(std::vector<Case>{{"rows"}}, [](Backend&, const Case&, const TestRow& row) {
		const bool slow = row.device == "swiftshader";
		const auto engine = open_engine(row.device, kModel);
		const size_t vocab = engine->config().vocab, steps = slow ? 20 : 50;
		const std::vector<Request> all = requests(8, uint32_t(vocab));
		std::vector<Floats> alone, got;
		std::deque<Session> sessions;
		for (const Request& r : all) {
			Session s(*engine, with(r.policy, 200));
			alone.push_back(greedy_logits(s, r.prompt, uint32_t(steps)));
			got.push_back(keep(sessions.emplace_back(*engine, with(r.policy, 200)).prefill(r.prompt)));
		}
		for (size_t i = 0; i < steps; ++i) {
			std::vector<SessionRow> rows;
			for (size_t k = 0; k < all.size(); ++k) rows.push_back({&sessions[k], best(std::span(got[k]).last(vocab))});
			if (i % 2) std::ranges::reverse(rows);
			const std::span<const float> logits = decode(rows);
			for (size_t r = 0; r < all.size(); ++r) {
				Floats& to = got[i % 2 ? all.size() - 1 - r : r];
				to.insert(to.end(), logits.begin() + ptrdiff_t(r * vocab), logits.begin() + ptrdiff_t((r + 1) * vocab));
			}
		}
		for (size_t k = 0; k < all.size(); ++k)
			check_same_bits({row.device, row.number, all[k].policy}, got[k], alone[k]);
	});
}

TEST_CASE("batch: pieces of a prompt between other sequences' tokens change neither") {
	each_row(std::vector<Case>{{"pieces"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(120, vocab, 5), other = random_tokens(40, vocab, 6);
		for (const std::string policy :
		     {"kivi2,recent_keep=8,flush=32", "mikv,recent_keep=8,flush=16", "zipcache,flush=25"}) {
			CAPTURE(policy);
			Floats want, want_other;
			{
				Session s(*engine, with(policy)), o(*engine, with(policy));
				want = greedy_logits(s, prompt, 4);
				const Floats more = greedy_logits(s, other, 4);
				want.insert(want.end(), more.begin(), more.end());
				want_other = greedy_logits(o, other, 40);
			}
			Session s(*engine, with(policy)), o(*engine, with(policy));
			Floats got, got_other = keep(o.prefill(other));
			const auto token_of_other = [&] {
				if (got_other.size() == want_other.size()) return;
				const Floats step = keep(o.decode(best(std::span(got_other).last(vocab))));
				got_other.insert(got_other.end(), step.begin(), step.end());
			};
			for (const Tokens& turn : {prompt, other}) {
				Floats logits;
				{
					Prefill p(s, turn);
					double last = 0;
					while (!p.step(1e-6)) {
						CHECK(p.progress() >= last);
						CHECK(p.progress() <= 1);
						last = p.progress();
						token_of_other();
					}
					CHECK(p.progress() == 1);
					CHECK(p.n_read() == turn.size());
					logits = keep(p.logits());
				}
				got.insert(got.end(), logits.begin(), logits.end());
				for (int i = 0; i < 4; ++i) {
					const Floats step = keep(s.decode(best(std::span(got).last(vocab))));
					got.insert(got.end(), step.begin(), step.end());
				}
			}
			while (got_other.size() < want_other.size()) token_of_other();
			check_same_bits({row.device, row.number, policy}, got, want);
			check_same_bits({row.device, row.number, policy + ", beside"}, got_other, want_other);
		}
	});
}

TEST_CASE("batch: a row that finds no page is named, and no sequence has changed") {
	each_row(std::vector<Case>{{"budget"}}, [](Backend&, const Case&, const TestRow& row) {
		const std::string policies[] = {"kivi2,recent_keep=8,flush=32", "fp16", "mikv,recent_keep=8,flush=16"};
		EngineOptions o;
		o.model = kModel, o.backend = select_test_device(row.device), o.kv_budget = 256 << 10;
		const auto engine = Engine::open(o);
		const uint32_t vocab = engine->config().vocab;
		std::deque<Session> sessions;
		std::vector<uint32_t> next;
		for (uint32_t i = 0; i < 3; ++i) {
			Session& s = sessions.emplace_back(*engine, with(policies[i], 4000));
			next.push_back(best(s.prefill(random_tokens(40 + 9 * i, vocab, i))));
		}
		size_t refused = SIZE_MAX;
		std::string what;
		for (uint32_t step = 0; step < 3000 && refused == SIZE_MAX; ++step) {
			std::vector<SessionRow> rows;
			std::vector<std::pair<uint32_t, size_t>> before;
			for (size_t i = 0; i < 3; ++i) {
				rows.push_back({&sessions[i], next[i]});
				before.emplace_back(sessions[i].n_tokens(), sessions[i].kv_bytes().total());
			}
			try {
				const std::span<const float> logits = decode(rows);
				for (size_t i = 0; i < 3; ++i) next[i] = best(logits.subspan(i * vocab, vocab));
			} catch (const RowError& e) {
				refused = e.row, what = e.what();
				CHECK(e.code == Code::OutOfMemory);
				for (size_t i = 0; i < 3; ++i) {
					CHECK(sessions[i].n_tokens() == before[i].first);
					CHECK(sessions[i].history().size() == before[i].first);
					CHECK(sessions[i].kv_bytes().total() == before[i].second);
				}
			}
		}
		REQUIRE(refused < 3);
		CHECK_MESSAGE(what.find("--kv") != what.npos, what);
		// The others continue as if it had not been there.
		for (size_t i = 0; i < 3; ++i) {
			if (i == refused) continue;
			const Tokens all(sessions[i].history().begin(), sessions[i].history().end());
			sessions[refused].reset();
			const Floats got = keep(sessions[i].decode(next[i]));
			const uint32_t prompt = uint32_t(40 + 9 * i);
			Session again(*engine, with(policies[i], 4000));
			again.prefill(std::span(all).first(prompt));
			for (const uint32_t t : std::span(all).subspan(prompt)) again.decode(t);
			check_same_bits({row.device, row.number, policies[i]}, got, keep(again.decode(next[i])));
			break; // both would not fit
		}
	});
}

TEST_CASE("batch: hooks, cancelling and errors are a stream's own") {
	each_row(std::vector<Case>{{"streams"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(30, vocab, 2);
		Session a(*engine), b(*engine), c(*engine, with("fp16", 34)), d(*engine);
		const Tokens want = generate(a, prompt, greedy(12)).tokens;
		a.reset();
		Batch batch(*engine);
		CHECK_THROWS_AS(batch.add(a, {}, greedy(1)), Error);
		CHECK_THROWS_AS(batch.add(c, random_tokens(35, vocab, 1), greedy(1)), Error);
		const uint32_t ia = batch.add(a, prompt, greedy(12));
		const uint32_t ib =
		    batch.add(b, prompt, greedy(12), {.prefill = [](const Prefill&) { return false; }, .text = {}});
		const uint32_t ic = batch.add(c, prompt, greedy(12));
		std::atomic<bool> cancel = false;
		GenerateOptions od = greedy(1000);
		od.cancel = &cancel;
		const uint32_t id = batch.add(d, prompt, od);
		CHECK_THROWS_AS(batch.add(d, prompt, greedy(1)), Error); // it is still reading
		while (batch.step())
			if (batch.done(ia) && batch.done(ib) && batch.done(ic) && d.n_tokens() > 45) cancel = true;
		CHECK(batch.take(ia).tokens == want);
		const GenerateResult rb = batch.take(ib), rc = batch.take(ic), rd = batch.take(id);
		CHECK(rb.reason == StopReason::Cancelled);
		CHECK(rb.prompt_tokens == 30);
		CHECK(rb.prompt_read == b.n_tokens()); // a fast device reads all of it in the first piece
		CHECK(rb.prompt_work > 0);
		CHECK(rb.tokens.empty());
		CHECK(rc.reason == StopReason::Context);
		CHECK(rc.tokens == Tokens(want.begin(), want.begin() + 5)); // one more than fits: no step reads what follows it
		CHECK(rd.reason == StopReason::Cancelled);
		CHECK(rd.tokens.size() >= 12);
		CHECK(Tokens(rd.tokens.begin(), rd.tokens.begin() + 12) == want);
	});
}
