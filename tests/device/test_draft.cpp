// Speculation on every device: rows of one sequence in a step have the bits of single-token steps; answers are those
// without drafts, whatever is drafted; rejected drafts leave no trace.
#include "engine/core/log.h"
#include "engine/run/batch.h"
#include "engine/run/draft_model.h"
#include "tests/device/sequences.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <deque>
#include <doctest/doctest.h>
#include <fstream>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";

// Delta rule, short convolutions, state spaces, states beside attention, decays by channel beside latent attention,
// selective scans.
const std::vector<Case> kRecurrentModels{{"qwen35"},      {"lfm2moe"},     {"granitehybrid"},   {"falcon_h1"},
                                         {"kimi_linear"}, {"bailingmoe3"}, {"mamba2"},          {"jamba"},
                                         {"rwkv7"},       {"qwen4exp"},    {"qwen4exp_sparse"}, {"kimi_k3"}};

// Drafts given tokens: the answer itself, with some wrong tokens.
struct Script final : Drafter {
	Tokens answer;      // of the plain run
	uint32_t wrong = 0; // every `wrong`-th drafted token is wrong; 0: none, 1: all
	size_t at = 0, n = 0, prompt = 0;
	Tokens out;
	void accept(std::span<const uint32_t> tokens) override { at += tokens.size(); }
	std::span<const uint32_t> draft(uint32_t most) override {
		out.clear();
		for (size_t i = at - prompt; out.size() < most && i < answer.size(); ++i)
			out.push_back(wrong && ++n % wrong == 0 ? (answer[i] + 1) % 256 : answer[i]);
		return out;
	}
};

// By token in f16 slots, since the last flush, over all layers.
Floats attention_received(Session& s) {
	std::vector<float> raw;
	s.seq().read_sums(0, s.engine().config().n_layers, raw);
	s.engine().backend().submit();
	s.engine().backend().wait();
	return s.seq().sums_of(raw);
}

GenerateOptions options(uint32_t n, double temperature) {
	GenerateOptions o;
	o.n = n;
	o.sampling.temperature = temperature;
	o.sampling.seed = 11;
	o.ignore_end = true;
	return o;
}

GenerateOptions drafting(GenerateOptions o, const Tokens& answer, size_t prompt, uint32_t wrong) {
	o.draft_max = 7;
	o.drafter = [=] {
		auto d = std::make_unique<Script>();
		d->answer = answer, d->prompt = prompt, d->wrong = wrong;
		return d;
	};
	return o;
}

} // namespace

TEST_CASE("draft: rows of one sequence in a step are the bits of steps of one token") {
	const std::vector<Case> cases{{"fp16"},
	                              {"kivi2,recent_keep=8,flush=32"},
	                              {"zipcache,flush=25"},
	                              {"zipcache,flush=25,probe.random=0.3"},
	                              {"turbo3/2,recent_keep=8,flush=32"},
	                              {"turbo2,recent_keep=8,flush=32"},
	                              {"logquant,W=10,k.group=32"},
	                              {"xquant,recent_keep=0,flush=32,k.group=32"},
	                              {"streaming,sinks=4,recent=33"},
	                              {"h2o,recent_keep=8,flush=16,budget=24"}};
	each_row(cases, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab, n = row.device == "swiftshader" ? 24 : 70;
		const Tokens prompt = random_tokens(109, vocab, 5), next = random_tokens(n, vocab, 6); // into a second page
		Session plain(*engine, with(c.name, 400)), fast(*engine, with(c.name, 400));
		plain.prefill(prompt), fast.prefill(prompt);
		Floats want;
		std::vector<Floats> received; // by token in f16, after each token
		for (const uint32_t t : next) {
			const std::span<const float> logits = plain.decode(t);
			want.insert(want.end(), logits.begin(), logits.end());
			if (plain.plan().ranked()) received.push_back(attention_received(plain));
		}
		uint32_t longest = 0;
		for (uint32_t at = 0, step = 0; at < n; ++step) {
			const uint32_t rows = fast.step_tokens(std::min(1 + step * 5 % 8, n - at));
			const uint32_t right = step % 3 == 0 ? rows : 1 + step % rows; // tokens that will stay
			longest = std::max(longest, rows);
			Tokens drafts;
			for (uint32_t i = 1; i < rows; ++i) drafts.push_back(i < right ? next[at + i] : (next[at + i] + i) % vocab);
			const SessionRow r{&fast, next[at], 0, drafts};
			const std::span<const RowLogits> logits = decode_step({&r, 1});
			REQUIRE(logits.size() == rows);
			for (uint32_t i = 0; i < right; ++i)
				check_same_bits({row.device, row.number, fmt::format("{}, token {}", c.name, at + i)},
				                keep(logits[i].all), keep(std::span(want).subspan(size_t(at + i) * vocab, vocab)));
			at += right;
			CHECK(fast.exact_position(109 + at) == 109 + at);
			fast.truncate(109 + at);
			if (!received.empty()) check_same_bits(row, attention_received(fast), received[at - 1]);
		}
		CHECK(fast.kv_bytes().total() == plain.kv_bytes().total());
		for (const uint32_t l : {0u, engine->config().n_layers - 1}) CHECK(fast.tiers(l, 0) == plain.tiers(l, 0));
		CHECK(std::ranges::equal(fast.history(), plain.history()));
		const bool forgets = c.name.starts_with("streaming"); // a token is dropped with each new one
		CHECK((longest == 1) == (forgets || !plain.why_one_token().empty()));
	});
}

TEST_CASE("draft: answers are those without drafts, whatever is drafted, and so is what the session holds") {
	const std::vector<Case> cases{
	    {"fp16"}, {"kivi2,recent_keep=8,flush=32"}, {"zipcache,flush=25"}, {"turbo3/2"}, {"turbo2"}};
	each_row(cases, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const Tokens prompt = random_tokens(30, engine->config().vocab, 5);
		const uint32_t n = row.device == "cpu" ? 70 : 40;
		for (const double temperature : {0.0, 1.0}) {
			GenerateOptions o = options(n, temperature);
			if (temperature > 0) o.sampling.frequency_penalty = 0.2, o.sampling.repeat_penalty = 1.1;
			Session plain(*engine, with(c.name, 200));
			const GenerateResult want = generate(plain, prompt, o);
			const Floats after = keep(plain.decode(3));
			for (const uint32_t wrong : {0u, 1u, 3u}) {
				CAPTURE(wrong);
				Session s(*engine, with(c.name, 200));
				const GenerateResult r = generate(s, prompt, drafting(o, want.tokens, prompt.size(), wrong));
				CHECK(r.tokens == want.tokens);
				CHECK(r.reason == want.reason);
				CHECK(r.kv.total() == want.kv.total());
				CHECK(r.decode_steps == want.decode_steps);
				CHECK(s.n_tokens() == plain.n_tokens() - 1);
				CHECK(std::ranges::equal(s.history(), plain.history().first(s.n_tokens())));
				check_same_bits(row, keep(s.decode(3)), after);
				CHECK(r.draft.drafted > 0);
				if (wrong == 0) CHECK(r.draft.accepted == r.draft.drafted);
				if (wrong == 1) CHECK(r.draft.accepted == 0);
				if (wrong == 3) CHECK((r.draft.accepted > 0 && r.draft.accepted < r.draft.drafted));
			}
		}
	});
}

TEST_CASE("draft: answers of a batch of several policies end where they would, with drafts looked up or wrong") {
	each_row(std::vector<Case>{{"batch"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const std::string kv[] = {"fp16", "kivi2,recent_keep=8,flush=32", "zipcache,flush=25", "turbo,group=32"};
		const Tokens text = random_tokens(20, engine->config().vocab, 8);
		Tokens prompt(text); // repetitions are found
		for (int i = 0; i < 3; ++i) prompt.insert(prompt.end(), text.begin(), text.end());
		std::vector<GenerateOptions> all;
		for (uint32_t i = 0; i < 4; ++i) all.push_back(options(20 + 9 * i, i % 2));
		std::vector<GenerateResult> want;
		std::vector<Tokens> history;
		for (uint32_t i = 0; i < 4; ++i) {
			if (i == 3) all[i].n = 1000; // until the context is full
			Session s(*engine, with(kv[i], 130));
			want.push_back(generate(s, prompt, all[i]));
			history.emplace_back(s.history().begin(), s.history().end());
			if (i == 2) { // its text is cut by a stop string
				all[i].stops = {engine->tokenizer().decode(std::span(want[i].tokens).subspan(15, 2), false)};
				Session again(*engine, with(kv[i], 130));
				want[i] = generate(again, prompt, all[i]);
				CHECK(want[i].reason == StopReason::Stop);
				history[i].assign(again.history().begin(), again.history().end());
			}
		}
		CHECK(want[3].reason == StopReason::Context);
		for (const bool lookup : {true, false}) {
			std::deque<Session> sessions;
			Batch batch(*engine);
			std::vector<uint32_t> ids;
			for (uint32_t i = 0; i < 4; ++i) {
				GenerateOptions o = drafting(all[i], want[i].tokens, prompt.size(), i + 2);
				if (lookup) o.drafter = {};
				ids.push_back(batch.add(sessions.emplace_back(*engine, with(kv[i], 130)), prompt, o));
			}
			while (batch.step()) {}
			uint64_t drafted = 0;
			for (uint32_t i = 0; i < 4; ++i) {
				const GenerateResult r = batch.take(ids[i]);
				CHECK_MESSAGE(r.tokens == want[i].tokens, row_text(row) << "\nsequence " << i << ", " << kv[i]);
				CHECK(r.reason == want[i].reason);
				CHECK(r.stop == want[i].stop);
				CHECK(std::ranges::equal(sessions[i].history(), history[i]));
				drafted += r.draft.drafted;
			}
			if (!lookup) CHECK(drafted > 0);
		}
	});
}

TEST_CASE("draft: an answer that ends inside a step leaves nothing of what was drafted behind its end") {
	each_row(std::vector<Case>{{"fp16"}, {"kivi2,recent_keep=8,flush=32"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, kModel);
		         const Tokens prompt = random_tokens(30, engine->config().vocab, 5);
		         GenerateOptions o = options(30, 1);
		         Session whole(*engine, with(c.name, 100));
		         const Tokens answer = generate(whole, prompt, o).tokens;
		         uint32_t inside = 0;
		         for (size_t end = 4; end < 15; ++end) {
			         o.stops = {engine->tokenizer().decode(std::span(answer).subspan(end, 2), false)};
			         if (o.stops[0].empty()) continue;
			         Session plain(*engine, with(c.name, 100)), s(*engine, with(c.name, 100));
			         const GenerateResult want = generate(plain, prompt, o);
			         const GenerateResult r = generate(s, prompt, drafting(o, answer, prompt.size(), 0));
			         CHECK(want.reason == StopReason::Stop);
			         CHECK(r.reason == StopReason::Stop);
			         CHECK(r.tokens == want.tokens);
			         CHECK(r.kv.total() == want.kv.total());
			         CHECK(std::ranges::equal(s.history(), plain.history()));
			         inside += r.draft.accepted < r.draft.drafted; // all are right: rejected ones were past the end
		         }
		         CHECK(inside > 2);
	         });
}

TEST_CASE("draft: layers with windows take drafts at any length of the text, and answer the same bit for bit") {
	each_row(std::vector<Case>{{"gemma3"}, {"gpt_oss"}, {"phi3_window"}, {"llama4"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf");
		         for (const uint32_t length : {3u, 40u}) { // windows have 8 tokens
			         const Tokens prompt = random_tokens(length, engine->config().vocab, 5);
			         const GenerateOptions o = options(40, 0);
			         Session plain(*engine, with("fp16", 100)), s(*engine, with("fp16", 100));
			         const GenerateResult want = generate(plain, prompt, o);
			         const GenerateResult r = generate(s, prompt, drafting(o, want.tokens, prompt.size(), 4));
			         CHECK(r.tokens == want.tokens);
			         CHECK(r.draft.accepted > 10);
			         CHECK(r.draft.accepted < r.draft.drafted); // what was wrong has been taken back
			         check_same_bits(row, keep(s.decode(3)), keep(plain.decode(3)));
		         }
	         });
}

TEST_CASE("draft: sessions that can take nothing back refuse by name") {
	each_row(std::vector<Case>{{"refused"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const Tokens prompt{1, 2, 3};
		GenerateOptions o = options(4, 0);
		o.draft_max = 4;
		for (const auto& [kv, why] : {std::pair("specache2,recent_keep=8,fetch=24", "fetches tokens"),
		                              std::pair("h2o,recent_keep=8,flush=16,budget=24", "every row's attention")}) {
			Session s(*engine, with(kv, 100));
			try {
				generate(s, prompt, o);
				FAIL("no error");
			} catch (const Error& e) {
				CHECK(e.code == Code::Unsupported);
				CHECK(std::string(e.what()).find(why) != std::string::npos);
			}
			CHECK(s.n_tokens() == 0);
		}
	});
}

TEST_CASE("draft: where memory has room for a token and none for drafts, an answer goes on without") {
	each_row(std::vector<Case>{{"memory"}}, [](Backend&, const Case&, const TestRow& row) {
		EngineOptions eo;
		eo.model = kModel, eo.backend = select_test_device(row.device);
		uint32_t page = 0;
		{
			const auto engine = Engine::open(eo);
			Session s(*engine, with("fp16", 400));
			page = s.plan().page[int(Tier::F16)];
			s.prefill(random_tokens(page, engine->config().vocab, 5));
			eo.kv_budget = s.kv_bytes().total() + 64; // no room for another page
		}
		const auto engine = Engine::open(eo);
		const Tokens prompt = random_tokens(page - 6, engine->config().vocab, 5);
		const GenerateOptions o = options(40, 0);
		const auto answer = [&](const GenerateOptions& how, Session& s) {
			Batch batch(*engine);
			const uint32_t id = batch.add(s, prompt, how);
			while (batch.step()) {}
			return batch.take(id);
		};
		Session plain(*engine, with("fp16", 400));
		const GenerateResult want = answer(o, plain);
		REQUIRE(want.error);
		const Tokens held(plain.history().begin(), plain.history().end());
		plain.reset();
		Tokens guess(want.tokens);
		guess.resize(40, 7);
		Session s(*engine, with("fp16", 400));
		const GenerateResult r = answer(drafting(o, guess, prompt.size(), 0), s);
		CHECK(r.error);
		CHECK(r.tokens == want.tokens);
		CHECK(std::ranges::equal(s.history(), held));
	});
}

// A draft that makes its cache flush could not be taken back.
TEST_CASE("draft: a small model with shorter windows than the large one's goes on drafting") {
	each_row(std::vector<Case>{{"gemma3"}}, [](Backend&, const Case& c, const TestRow& row) {
		const TempFolder folder;
		const auto with_window = [&](const char* name, uint32_t tokens) {
			GgufBuilder b = GgufBuilder::copy_as(Gguf::open(kGolden + "tiny/" + c.name + ".gguf"), c.name);
			const std::vector<std::byte> file = b.u32(c.name + ".attention.sliding_window", tokens).bytes();
			const std::string path = (folder.path / name).string();
			std::ofstream(path, std::ios::binary)
			    .write(reinterpret_cast<const char*>(file.data()), std::streamsize(file.size()));
			return path;
		};
		const auto engine = open_engine(row.device, with_window("large.gguf", 128));
		EngineOptions eo;
		eo.model = with_window("small.gguf", 32), eo.backend = select_test_device(row.device);
		eo.max_rows = DraftModel::kRows, eo.ubatch = 64;
		DraftModel small(eo, engine->tokenizer(), 250);
		const Tokens prompt = random_tokens(12, engine->config().vocab, 5);
		std::string log; // a drafter that gives up says so
		set_log_sink([&](int, std::string_view line) { log += line; }, 1);
		for (uint32_t seed = 1; seed <= (row.device == "cpu" ? 20u : 2u); ++seed) {
			CAPTURE(seed);
			GenerateOptions o = options(230, 0.15);
			o.sampling.seed = seed;
			Session alone(*engine, with("fp16", 250)), s(*engine, with("fp16", 250));
			const GenerateResult want = generate(alone, prompt, o);
			o.draft_max = 5;
			o.drafter = [&] { return small.drafter(); };
			const GenerateResult r = generate(s, prompt, o);
			CHECK(r.tokens == want.tokens);
			CHECK(r.draft.accepted < r.draft.drafted);
			CHECK(log.find("drafts no further") == std::string::npos);
		}
		set_log_sink({}, 0);
	});
}

TEST_CASE("draft: a small model drafts, and is refused where its vocabulary is another one") {
	each_row(std::vector<Case>{{"model"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const Tokens prompt = random_tokens(12, engine->config().vocab, 5);
		EngineOptions eo;
		eo.backend = select_test_device(row.device);
		eo.max_rows = DraftModel::kRows, eo.ubatch = 64;
		const GenerateOptions plain = options(40, 0);
		Session alone(*engine, with("kivi2,recent_keep=8,flush=32", 100));
		const GenerateResult want = generate(alone, prompt, plain);
		const auto share = [&](const std::string& name) { // share of drafts that were right
			eo.model = kGolden + "tiny/" + name + ".gguf";
			DraftModel small(eo, engine->tokenizer(), 100);
			GenerateOptions o = plain;
			o.draft_max = 5;
			o.drafter = [&small] { return small.drafter(); };
			Session s(*engine, with("kivi2,recent_keep=8,flush=32", 100));
			const GenerateResult r = generate(s, prompt, o);
			CHECK(r.tokens == want.tokens);
			CHECK(std::ranges::equal(s.history(), alone.history()));
			REQUIRE(r.draft.drafted > 0);
			return double(r.draft.accepted) / double(r.draft.drafted);
		};
		CHECK(share(kPolicyModel) > 0.7); // the model itself, whose cache has fewer bits in the drafter
		CHECK(share("llama_tied") < 0.5); // other weights
		const auto refused = [&](const std::string& path, Code code, const std::string& why) {
			eo.model = path;
			try {
				DraftModel(eo, engine->tokenizer(), 100);
				FAIL("no error");
			} catch (const Error& e) {
				CHECK(e.code == code);
				CHECK_MESSAGE(std::string(e.what()).find(why) != std::string::npos, e.what());
			}
		};
		// the same model, except for one character of a token
		const TempFolder folder;
		const std::string other = (folder.path / "other.gguf").string(),
		                  old = std::string(engine->tokenizer().text(290));
		std::ifstream in(kModel, std::ios::binary);
		std::string bytes{std::istreambuf_iterator<char>(in), {}};
		const size_t at = bytes.find(std::string(1, char(old.size())) + std::string(7, '\0') + old);
		REQUIRE(at != bytes.npos);
		bytes[at + 8 + old.size() - 1] ^= 1;
		std::ofstream(other, std::ios::binary) << bytes;
		refused(other, Code::Invalid, "token 290 is '");
		refused(test_root() + "/models/bundled/recall-4m-f16.gguf", Code::Invalid, "2048 tokens, not ");
	});
}

TEST_CASE("draft: rows of a recurrent model have the bits of single steps, and the state of any of them can be taken") {
	each_row(kRecurrentModels, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf");
		const uint32_t vocab = engine->config().vocab, n = 40;
		const Tokens prompt = random_tokens(21, vocab, 5), next = random_tokens(n, vocab, 6);
		Session plain(*engine, with("kivi2,recent_keep=8,flush=32", 400)),
		    fast(*engine, with("kivi2,recent_keep=8,flush=32", 400)), other(*engine, with("fp16", 400));
		plain.prefill(prompt), fast.prefill(prompt), other.prefill(prompt);
		Floats want;
		for (const uint32_t t : next) {
			const std::span<const float> logits = plain.decode(t);
			want.insert(want.end(), logits.begin(), logits.end());
		}
		for (uint32_t at = 0, step = 0; at < n; ++step) {
			const uint32_t rows = fast.step_tokens(std::min(1 + step * 3 % 5, n - at));
			const uint32_t right = step % 3 == 0 ? rows : 1 + step % rows; // tokens that will stay
			Tokens drafts;
			for (uint32_t i = 1; i < rows; ++i) drafts.push_back(i < right ? next[at + i] : (next[at + i] + i) % vocab);
			const std::unique_ptr<Session> fork = step % 4 == 1 ? fast.fork() : nullptr; // its state stays as it is
			const Tokens others = random_tokens(step % 3, vocab, 90 + step);
			const SessionRow both[] = {{&other, 3, 0, others}, {&fast, next[at], 0, drafts}};
			const std::span<const RowLogits> logits = decode_step(both);
			REQUIRE(logits.size() == 2 + others.size() + drafts.size());
			for (uint32_t i = 0; i < right; ++i)
				check_same_bits({row.device, row.number, fmt::format("{}, token {}", c.name, at + i)},
				                keep(logits[i ? 1 + others.size() + i : 1].all),
				                keep(std::span(want).subspan(size_t(at + i) * vocab, vocab)));
			for (uint32_t i = 1; i <= rows; ++i) CHECK(fast.exact_position(21 + at + i) == 21 + at + i);
			other.keep_drafts();
			CHECK(other.exact_position(other.n_tokens() - 1) == 0);
			if (fork)
				check_same_bits(row, keep(fork->decode(next[at])),
				                keep(std::span(want).subspan(size_t(at) * vocab, vocab)));
			at += right;
			fast.truncate(21 + at);
			fast.keep_drafts();
			CHECK(fast.exact_position(20 + at) == 0);
		}
		CHECK(fast.kv_bytes().total() == plain.kv_bytes().total());
		check_same_bits(row, keep(fast.decode(5)), keep(plain.decode(5)));
	});
}

TEST_CASE("draft: answers of recurrent models are those without drafts, whatever is drafted") {
	each_row(kRecurrentModels, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf");
		const Tokens prompt = random_tokens(30, engine->config().vocab, 5);
		const GenerateOptions o = options(row.device == "cpu" ? 60 : 30, 1);
		Session plain(*engine, with("fp16", 200));
		const GenerateResult want = generate(plain, prompt, o);
		const Floats after = keep(plain.decode(3));
		for (const uint32_t wrong : {0u, 1u, 3u}) {
			CAPTURE(wrong);
			Session s(*engine, with("fp16", 200));
			const GenerateResult r = generate(s, prompt, drafting(o, want.tokens, prompt.size(), wrong));
			CHECK(r.tokens == want.tokens);
			CHECK(r.kv.total() == want.kv.total());
			check_same_bits(row, keep(s.decode(3)), after);
			CHECK(r.draft.drafted > 0);
			if (wrong == 0) CHECK(r.draft.accepted == r.draft.drafted);
			if (wrong == 1) CHECK(r.draft.accepted == 0);
		}
	});
}

TEST_CASE("draft: a model with recurrent layers is no draft model") {
	each_row(std::vector<Case>{{"qwen35"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = kGolden + "tiny/" + c.name + ".gguf";
		const auto engine = open_engine(row.device, model);
		EngineOptions eo;
		eo.model = model, eo.backend = select_test_device(row.device);
		CHECK_THROWS_AS(DraftModel(eo, engine->tokenizer(), 100), Error);
	});
}
