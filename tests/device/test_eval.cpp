// Evaluation: questions and intervals; scores on text and right answers on every device.
#include "engine/core/splitmix64.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tests/support/temp_folder.h"
#include "tools/eval/evaluate.h"
#include "tools/eval/question_file.h"
#include "tools/eval/words.h"
#include <cmath>
#include <fstream>
#include <set>

using namespace kvrun;

namespace {

const std::string kBundled = test_root() + "/models/bundled/";

struct Device {
	std::string text() const { return "evaluation"; }
};

std::unique_ptr<Engine> open_bundled(const std::string& device, uint64_t kv_budget = 0) {
	EngineOptions opt;
	opt.kv_budget = kv_budget;
	opt.model = kBundled + "recall-4m-f16.gguf";
	opt.backend = select_test_device(device);
	return Engine::open(opt);
}

// Text of the kind that the model was trained on: lines of records.
std::vector<uint32_t> some_text(const Engine& e, uint32_t lines) {
	return e.tokenizer().encode(recall_question(lines, 5, 0).record, {.bos = false});
}

std::set<std::string> lines_of(const std::string& text) {
	std::set<std::string> out;
	for (size_t at = 0; at < text.size();) {
		const size_t end = text.find('\n', at);
		out.insert(text.substr(at, end - at));
		at = end + 1;
	}
	return out;
}

} // namespace

TEST_CASE("Wilson's interval") {
	CHECK(wilson(0, 0) == std::pair(0.0, 1.0));
	CHECK(wilson(0, 10).first == 0);
	CHECK(wilson(0, 10).second == doctest::Approx(0.27753).epsilon(1e-4));
	CHECK(wilson(10, 10).first == doctest::Approx(1 - 0.27753).epsilon(1e-4));
	CHECK(wilson(10, 10).second == 1);
	CHECK(wilson(50, 100).first == doctest::Approx(0.40383).epsilon(1e-4)); // Newcombe 1998, method 3
	CHECK(wilson(81, 263).first == doctest::Approx(0.2553).epsilon(1e-3));
	CHECK(wilson(81, 263).second == doctest::Approx(0.3662).epsilon(1e-3));
}

TEST_CASE("mean and its standard error") {
	CHECK(mean_and_error({}) == std::pair(0.0, 0.0));
	const std::vector<float> one{3}, four{1, 2, 3, 6};
	CHECK(mean_and_error(one) == std::pair(3.0, 0.0));
	CHECK(mean_and_error(four).first == doctest::Approx(3));
	CHECK(mean_and_error(four).second == doctest::Approx(std::sqrt(14.0 / 3 / 4)));
}

TEST_CASE("quantiles") {
	const std::vector<float> x{1, 2, 4, 8};
	CHECK(quantile({}, 0.5) == 0);
	CHECK(quantile(x, 0) == 1);
	CHECK(quantile(x, 0.5) == doctest::Approx(3));
	CHECK(quantile(x, 0.999) == doctest::Approx(8 - 0.003 * 4));
	CHECK(quantile(x, 1) == 8);
}

TEST_CASE("block bootstrap: as wide as theory says, wider where neighbours depend on each other") {
	CHECK(block_bootstrap({}, 5) == std::pair(0.0, 0.0));
	const std::vector<float> same(48, 0.25f);
	CHECK(block_bootstrap(same, 24) == std::pair(0.25, 0.25));
	CHECK_THROWS_AS(block_bootstrap(same, 7), Error); // no complete stretch
	constexpr uint32_t n = 4096, repeat = 8;
	std::vector<float> alone(n), groups(n), shifted(n);
	for (uint32_t i = 0; i < n; ++i) {
		alone[i] = float(splitmix64((i + 1) * kSplitmixStep) >> 40) / float(1 << 24); // uniform in 0 .. 1
		groups[i] = float(splitmix64((i / repeat + 1) * kSplitmixStep) >> 40) / float(1 << 24);
		shifted[i] = alone[i] + 3;
	}
	const auto width = [](const std::vector<float>& x, uint32_t stretch) {
		const auto [low, high] = block_bootstrap(x, stretch);
		const double mean = mean_and_error(x).first;
		CHECK(low < mean);
		CHECK(mean < high);
		return high - low;
	};
	const double independent = 2 * 1.96 * std::sqrt(1 / 12. / n);
	CHECK(width(alone, 1024) == doctest::Approx(independent).epsilon(0.15));
	CHECK(width(alone, 1024) == width(alone, 1024));
	CHECK(width(shifted, 1024) == doctest::Approx(width(alone, 1024)).epsilon(0.001));
	// Groups of 8 equal values are worth n / 8 independent ones; blocks of 16 detect at least 15 / 16 of that.
	CHECK(width(groups, 1024) == doctest::Approx(independent * std::sqrt(double(repeat))).epsilon(0.2));
	CHECK(width(alone, 4) == doctest::Approx(independent).epsilon(0.15)); // stretches shorter than a block
}

TEST_CASE("pooled texts and differences") {
	const auto result = [](std::vector<float> f16, std::vector<float> a, std::vector<float> b, uint32_t chunks) {
		TextResult r{.chunks = chunks, .scored = uint32_t(a.size()) / chunks, .scores = {}};
		for (const auto& [name, kld] : {std::pair("fp16", f16), std::pair("a", a), std::pair("b", b)}) {
			TextScore& s = r.scores.emplace_back();
			s.policy = name, s.kld = kld, s.nll.assign(kld.size(), 1), s.agreed.assign(kld.size(), 0);
			s.agreed[0] = 1;
			s.cost.stored_bits = double(chunks), s.cost.decode_tokens = 10;
		}
		return r;
	};
	const std::vector<TextResult> texts = {result({0, 0}, {1, 2}, {2, 4}, 1),
	                                       result({0, 0, 0, 0}, {3, 4, 5, 9}, {4, 5, 6, 10}, 2)};
	const TextResult all = pooled(texts);
	CHECK(all.chunks == 3);
	CHECK(all.scored == 2);
	REQUIRE(all.scores.size() == 3);
	const TextScore &a = all.scores[1], &b = all.scores[2];
	CHECK(a.policy == "a");
	CHECK(a.kld == std::vector<float>{1, 2, 3, 4, 5, 9});
	CHECK(a.kld_mean == doctest::Approx(4));
	CHECK(a.kld_median == doctest::Approx(3.5));
	CHECK(a.kld_worst == 9);
	CHECK(a.kld_p999 == doctest::Approx(9 - 0.005 * 4));
	CHECK(a.kld_low < 4);
	CHECK(a.kld_high > 4);
	CHECK(a.top1 == doctest::Approx(2 / 6.));
	CHECK(a.ppl == doctest::Approx(std::exp(1.)));
	CHECK(a.cost.stored_bits == doctest::Approx((1 + 2 * 2) / 3.));
	CHECK(a.cost.decode_tokens == 20);
	const KldDifference d = kld_difference(b, a, all.scored);
	CHECK(d.mean == doctest::Approx(7 / 6.));
	CHECK(d.low >= 1); // each pair of neighbours differs by 1 or 1.5
	CHECK(d.high <= 1.5);
	const KldDifference none = kld_difference(a, a, all.scored);
	CHECK(none.mean == 0);
	CHECK(none.low == 0);
	CHECK(none.high == 0);
}

TEST_CASE("questions of a file") {
	const TempFolder folder;
	const std::string path = (folder.path / "questions.jsonl").string();
	const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
	write("{\"context\": \"A is 1.\", \"question\": \"What is A?\", \"answers\": [\"1\", \"one\"], \"id\": 7}\n"
	      "\n"
	      "{\"answers\": [\"2\"], \"context\": \"B\", \"question\": \"Q\"}\r\n"
	      "{\"answers\": [\"3\"], \"context\": \"C\", \"question\": \"Q\"}");
	const std::vector<Question> all = questions_of_file(path, 100);
	REQUIRE(all.size() == 3);
	CHECK(all[0].record == "A is 1.\n\n");
	CHECK(all[0].query == "Question: What is A?\nAnswer:");
	CHECK(all[0].answer == " 1");
	CHECK(all[0].other_answers == std::vector<std::string>{" one"});
	CHECK(all[2].answer == " 3");
	CHECK(questions_of_file(path, 2).size() == 2);
	const std::string good = "{\"context\": \"c\", \"question\": \"q\", \"answers\": [\"a\"]}\n";
	const std::vector<std::pair<std::string, std::string>> bad = {
	    {"\n \n", "no questions"},
	    {good + "{\"context\": \"c\"", ":2: not a JSON object"},
	    {"[1]", ":1: not a JSON object"},
	    {good + "\n{\"context\": \"c\", \"answers\": [\"a\"]}", ":3: no 'question'"},
	    {"{\"context\": 1, \"question\": \"q\", \"answers\": [\"a\"]}", ":1: 'context' is number"},
	    {"{\"context\": \"c\", \"question\": \"q\", \"answers\": []}", ":1: 'answers' is empty"},
	    {"{\"context\": \"c\", \"question\": \"q\", \"answers\": \"a\"}", ":1: 'answers' is string"},
	    {"{\"context\": \"c\", \"question\": \"q\", \"answers\": [\" \"]}", ":1: 'answers' holds an empty text"}};
	for (const auto& [line, says] : bad) {
		const std::string text = line;
		CAPTURE(text);
		write(text);
		try {
			questions_of_file(path, 100);
			FAIL("accepted");
		} catch (const Error& e) {
			CHECK(e.code == Code::Format);
			CHECK(std::string(e.what()).find(says) != std::string::npos);
			CHECK(std::string(e.what()).find(path) == 0);
		}
	}
	CHECK_THROWS_AS(questions_of_file(path + "-none", 1), Error);
}

TEST_CASE("the words of records are the bundled model's") {
	const std::string words = file_text(kBundled + "words.py");
	std::string adjectives(kAdjectives), nouns(kNouns);
	CHECK(adjectives.back() == ' ');
	adjectives.pop_back(), nouns.pop_back();
	CHECK(words.find("ADJ=\"" + adjectives + "\"") != std::string::npos);
	CHECK(words.find("NOUN=\"" + nouns + "\"") != std::string::npos);
}

TEST_CASE("questions: reproducible, one right answer, every depth") {
	for (const uint32_t lines : {1u, 20u, 130u, 200u, 1000u}) {
		const Question q = recall_question(lines, 7, 3);
		CAPTURE(lines);
		CHECK(recall_question(lines, 7, 3).record == q.record);
		CHECK(recall_question(lines, 7, 4).record != q.record);
		CHECK(recall_question(lines, 8, 3).record != q.record);
		std::set<std::string> names;
		for (const std::string& line : lines_of(q.record))
			if (line.starts_with("line ")) names.insert(line.substr(5, line.find(':') - 5));
		CHECK(names.size() == lines); // no name occurs twice
		REQUIRE(q.query.starts_with("Query: "));
		const std::string name = q.query.substr(7, q.query.find('\n') - 7);
		CHECK(q.query == "Query: " + name + "\nAnswer: <");
		const std::string line = "line " + name + ": REGISTER_CONTENT is <" + q.answer + ">\n";
		CHECK(q.record.find(line) != std::string::npos);
		CHECK(q.answer.size() == 5);
	}
	CHECK_THROWS_AS(recall_question(0, 1, 0), Error);
	const Question alone = recall_question(6, 7, 3), turns = recall_question(6, 7, 3, {}, 4);
	CHECK(turns.record == alone.record);
	CHECK(turns.answer == alone.answer);
	CHECK(turns.query.ends_with("\n" + alone.query));
	size_t n = 0; // right answers to questions about other lines
	for (size_t at = 0; (at = turns.query.find("Answer: <", at)) != std::string::npos; at += 9) {
		const std::string answer = turns.query.substr(at + 9, 5);
		if (answer.empty()) break; // the question itself
		const size_t name_at = turns.query.rfind("Query: ", at) + 7;
		const std::string name = turns.query.substr(name_at, at - name_at - 1);
		CHECK(turns.record.find("line " + name + ": REGISTER_CONTENT is <" + answer + ">") != std::string::npos);
		CHECK(answer != turns.answer);
		++n;
	}
	CHECK(n == 4);
	CHECK_THROWS_AS(recall_question(1, 7, 3, {}, 1), Error);
	double depth = 0;
	for (uint32_t i = 0; i < 50; ++i) depth += recall_question(40, 1, i).depth / 50;
	CHECK(depth == doctest::Approx(0.5).epsilon(0.3)); // any line may be the one asked for

	for (uint32_t i = 0; i < 5; ++i) {
		const Question q = needle_question(20, 3, i, 5);
		CHECK(q.depth == doctest::Approx(i / 4.0));
		const size_t at = q.record.find("line ");
		REQUIRE(at != std::string::npos);
		CHECK(size_t(std::count(q.record.begin(), q.record.begin() + ptrdiff_t(at), '\n')) ==
		      1 + i * 5); // sentences before it
		CHECK(lines_of(q.record).size() >= 20);
	}
}

TEST_CASE("scores on text: f16 against itself, and more bits are better") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const auto e = open_bundled(row.device);
		const std::vector<uint32_t> text = some_text(*e, 24);
		const std::vector<KvPolicy> policies = parse_policies("rtn8,rtn4,rtn2,fp16");
		const TextEvalOptions opt{.chunk = 192, .scored = 20, .chunks = 2};
		double last = -1;
		const TextResult r = eval_text(*e, {.ctx = 192}, text, policies, opt, {[&](double done) {
			CHECK(done > last);
			last = done;
			return true;
		}});
		CHECK(last == doctest::Approx(1));
		CHECK(r.chunks == 2);
		REQUIRE(r.scores.size() == 4); // fp16 only once, first
		const TextScore &f16 = r.scores[0], &q8 = r.scores[1], &q4 = r.scores[2], &q2 = r.scores[3];
		CHECK(f16.policy == "fp16");
		CHECK(f16.kld.size() == 40);
		CHECK(f16.kld_mean == 0);
		CHECK(f16.top1 == 1);
		CHECK(q8.kld_mean > 0);
		CHECK(q8.kld_mean < q4.kld_mean);
		CHECK(q4.kld_mean < q2.kld_mean);
		CHECK(q8.kld_mean < 1e-3);
		CHECK(q2.kld_mean > 1e-3);
		CHECK(q2.kld_median <= q2.kld_p99);
		CHECK(q8.top1 >= q2.top1);
		CHECK(q8.ppl == doctest::Approx(f16.ppl).epsilon(0.01));
		CHECK(f16.cost.stored_bits > q8.cost.stored_bits);
		CHECK(q8.cost.stored_bits > q4.cost.stored_bits);
		CHECK(q4.cost.decode_tokens == 40);
		CHECK(q4.cost.timed().decode_tokens == 20); // of two chunks
		CHECK(q4.cost.prefill_tokens == 2 * (192 - 21));

		// The same perplexity from the logits of the whole chunk as one prompt, which takes another path through the
		// device.
		double nll = 0;
		for (uint32_t c = 0; c < 2; ++c) {
			std::vector<uint32_t> chunk;
			const uint32_t bos = e->tokenizer().adds_bos();
			if (bos) chunk.push_back(*e->tokenizer().bos());
			chunk.insert(chunk.end(), text.begin() + c * (192 - bos), text.begin() + (c + 1) * (192 - bos));
			Session s(*e, {.ctx = 192});
			PrefillHooks hooks;
			hooks.all_logits = [&](uint32_t first, uint32_t n, std::span<const float> logits) {
				const size_t vocab = e->config().vocab;
				for (uint32_t i = 0; i < n; ++i) {
					if (first + i < 192 - 21 || first + i >= 191) continue;
					double sum = 0;
					for (size_t t = 0; t < vocab; ++t) sum += std::exp(double(logits[i * vocab + t]));
					nll += std::log(sum) - double(logits[i * vocab + chunk[first + i + 1]]);
				}
			};
			s.prefill(chunk, hooks);
		}
		CHECK(f16.ppl == doctest::Approx(std::exp(nll / 40)).epsilon(0.005));
	});
}

TEST_CASE("policies that decode together have the scores they have alone, also where memory holds only one at a time") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const std::vector<KvPolicy> policies =
		    parse_policies("rtn4,recent=96,kivi2,turbo2,group=32,flush=32,recent=96,rtn2");
		const TextEvalOptions opt{.chunk = 160, .scored = 12, .chunks = 1};
		const auto scores = [&](uint32_t together, uint64_t budget) {
			const auto e = open_bundled(row.device, budget);
			TextEvalOptions o = opt;
			o.together = together;
			double last = 0;
			const TextResult r = eval_text(*e, {.ctx = 160}, some_text(*e, 12), policies, o, {[&](double done) {
				last = done;
				return true;
			}});
			CHECK(last == doctest::Approx(1));
			REQUIRE(r.scores.size() == 5);
			return r.scores;
		};
		const std::vector<TextScore> alone = scores(1, 0);
		const uint64_t one =
		    2 * 128 * 2048 + 40000; // bytes: the two pages of the f16 cache, not windows of three caches
		const auto little = open_bundled(row.device, one);
		std::vector<std::unique_ptr<Session>> sessions;
		const std::vector<uint32_t> text = some_text(*little, 12);
		const auto read_three = [&] {
			for (size_t i = 0; i < 3; ++i) {
				sessions.push_back(std::make_unique<Session>(*little, SessionOptions{.kv = policies[i], .ctx = 160}));
				sessions.back()->prefill(std::span(text).first(147));
			}
		};
		CHECK_THROWS_AS(read_three(), Error);
		sessions.clear();
		for (const uint64_t budget : {uint64_t(0), one}) {
			const std::vector<TextScore> side_by_side = scores(3, budget);
			for (size_t i = 0; i < alone.size(); ++i) {
				CHECK(side_by_side[i].policy == alone[i].policy);
				CHECK(side_by_side[i].kld == alone[i].kld);
				CHECK(side_by_side[i].kld_mean == alone[i].kld_mean);
				CHECK(side_by_side[i].ppl == alone[i].ppl);
				CHECK(side_by_side[i].cost.stored_bits == alone[i].cost.stored_bits);
			}
		}
	});
}

TEST_CASE("an evaluation that is stopped keeps whole chunks only; what cannot be measured is refused") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const auto e = open_bundled(row.device);
		const std::vector<uint32_t> text = some_text(*e, 16);
		const std::vector<KvPolicy> q4 = parse_policies("rtn4");
		const TextResult r = eval_text(*e, {.ctx = 64}, text, q4, {.chunk = 64, .scored = 4, .chunks = 3},
		                               {[](double done) { return done < 0.6; }});
		CHECK(r.chunks == 1);
		REQUIRE(r.scores.size() == 2);
		CHECK(r.scores[0].kld.size() == 4);
		CHECK(r.scores[1].kld.size() == 4);
		// also between the pieces of a prompt, and the tokens of a question
		uint32_t asks = 0, finished = 0;
		const auto ask_until = [&](uint32_t most_finished) {
			asks = finished = 0;
			return EvalHooks{[&](double) { return ++finished > 0; },
			                 [&, most_finished] { return ++asks > 0 && finished < most_finished; }};
		};
		const TextEvalOptions one{.chunk = 64, .scored = 4, .chunks = 1};
		CHECK(eval_text(*e, {.ctx = 64}, text, q4, one, ask_until(0)).chunks == 0);
		CHECK(asks == 1);
		CHECK(eval_text(*e, {.ctx = 64}, text, q4, one, ask_until(1000)).chunks == 1);
		const std::vector<Question> two = {recall_question(4, 1, 0), recall_question(4, 1, 1)};
		for (const uint32_t together : {1u, 2u}) {
			const auto until = [&](uint32_t most_finished) {
				return eval_task(*e, {.ctx = 256}, two, q4, Ask::Later, together, ask_until(most_finished));
			};
			CHECK(until(0).empty());
			const std::vector<TaskScore> first = until(1), both = until(1000);
			REQUIRE(first.size() == 1);
			CHECK(first[0].right.size() == 1);
			CHECK(first[0].loss.size() == 1);
			CHECK(both.at(0).right.size() == 2);
		}
		try { // predictions of so many tokens, which no host has room for
			(void)chunks_of_text(*e, SIZE_MAX, {.chunk = 1u << 31, .scored = (1u << 31) - 2});
			FAIL("accepted");
		} catch (const Error& error) {
			CHECK(error.code == Code::OutOfMemory);
			CHECK(std::string(error.what()).find("--score") != std::string::npos);
		}
		CHECK(chunks_of_text(*e, text.size(), {.chunk = 64, .scored = 4, .chunks = 3, .shard = {1, 2}}).first == 1);
		CHECK_THROWS_AS(eval_text(*e, {.ctx = 64}, text, q4, {.chunk = 65, .scored = 4}),
		                Error); // longer than the context
		CHECK_THROWS_AS(eval_text(*e, {.ctx = 64}, text, q4, {.chunk = 8, .scored = 7}), Error); // no token before it
		CHECK_THROWS_AS(eval_text(*e, {.ctx = 64}, std::span(text).first(9), q4, {.chunk = 64, .scored = 4}), Error);
		const Question q = recall_question(40, 1, 0);
		CHECK_THROWS_AS(eval_task(*e, {.ctx = 64}, std::span(&q, 1), q4, Ask::Prompt),
		                Error); // longer than the context
	});
}

TEST_CASE("the loss of an answer is that of its tokens in one prompt") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const auto e = open_bundled(row.device);
		Question q = recall_question(6, 3, 0);
		q.answer = "31"; // not the right one: a loss worth comparing
		const TaskScore t = eval_task(*e, {.ctx = 512}, std::span(&q, 1), parse_policies("fp16"), Ask::Later)[0];
		CHECK(t.n_right == 0);
		const std::vector<uint32_t> all = e->tokenizer().encode(q.record + q.query + q.answer);
		double loss = 0;
		Session s(*e, {.ctx = 512});
		PrefillHooks hooks;
		hooks.all_logits = [&](uint32_t first, uint32_t n, std::span<const float> logits) {
			const size_t vocab = e->config().vocab;
			for (uint32_t i = 0; i < n; ++i) {
				if (first + i + 3 < all.size() || first + i + 1 >= all.size()) continue;
				double sum = 0;
				for (size_t w = 0; w < vocab; ++w) sum += std::exp(double(logits[i * vocab + w]));
				loss += (std::log(sum) - double(logits[i * vocab + all[first + i + 1]])) / 2;
			}
		};
		s.prefill(all, hooks);
		CHECK(t.loss_mean > 1);
		CHECK(t.loss_mean == doctest::Approx(loss).epsilon(0.005));

		Question other = recall_question(6, 3, 0);
		other.other_answers = {"no", " " + other.answer}; // white space before an answer does not count
		other.answer = "31";
		const TaskScore u = eval_task(*e, {.ctx = 512}, std::span(&other, 1), parse_policies("fp16"), Ask::Later)[0];
		CHECK(u.n_right == 1);
		CHECK(u.loss_mean == t.loss_mean); // for the first answer
	});
}

TEST_CASE("questions about one record read it once, and answers are those of sessions of their own") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const auto e = open_bundled(row.device);
		std::vector<Question> together;
		for (uint32_t line : {0, 3, 5}) together.push_back(recall_question(6, 11, 0, line));
		together.push_back(recall_question(6, 11, 1)); // about another record
		const std::vector<KvPolicy> policies = parse_policies("fp16,kivi2,zipcache");
		const auto s = eval_task(*e, {.ctx = 512}, together, policies, Ask::Later);
		const size_t prompt = e->tokenizer().encode(together[0].record).size();
		CHECK(s[0].cost.prefill_tokens <= 2 * prompt + 4); // another record may differ by a few tokens
		for (size_t i = 0; i < together.size(); ++i) {
			const auto alone = eval_task(*e, {.ctx = 512}, std::span(&together[i], 1), policies, Ask::Later);
			for (size_t p = 0; p < policies.size(); ++p) {
				CAPTURE(s[p].policy);
				CHECK(s[p].loss[i] == alone[p].loss[0]);
				CHECK(s[p].right[i] == alone[p].right[0]);
			}
		}
		// Side by side: the same answers, and a record is read once for the policies that do not rank.
		const auto by_side = eval_task(*e, {.ctx = 512}, together, policies, Ask::Later, 4);
		for (size_t p = 0; p < policies.size(); ++p) {
			CAPTURE(s[p].policy);
			CHECK(by_side[p].loss == s[p].loss);
			CHECK(by_side[p].right == s[p].right);
			CHECK(by_side[p].longest == s[p].longest);
			CHECK(by_side[p].cost.stored_bits == s[p].cost.stored_bits);
			CHECK(by_side[p].cost.prefill_tokens == (p < 2 ? 0 : s[p].cost.prefill_tokens));
		}
	});
}

TEST_CASE("look-up tasks: the bundled model answers, asked in the prompt and later") {
	each_row(std::vector<Device>{{}}, [](Backend&, const Device&, const TestRow& row) {
		const auto e = open_bundled(row.device);
		std::vector<Question> questions;
		for (uint32_t i = 0; i < 2; ++i) questions.push_back(recall_question(8, 11, i));
		const std::vector<KvPolicy> policies = parse_policies("fp16,rtn8,streaming,sinks=4,recent=16");
		for (const Ask ask : {Ask::Prompt, Ask::Later}) {
			const std::vector<TaskScore> s = eval_task(*e, {.ctx = 512}, questions, policies, ask);
			REQUIRE(s.size() == 3);
			CHECK(s[0].n_right == 2);
			CHECK(s[1].n_right == 2);
			CHECK(s[2].n_right < 2); // the record is evicted: these are 150 tokens
			CHECK(s[0].right == std::vector<uint8_t>{1, 1});
			CHECK(s[0].high == 1);
			CHECK(s[0].longest > 100);
			CHECK(s[1].cost.stored_bits < s[0].cost.stored_bits);
			const uint64_t decoded =
			    s[0].cost.decode_tokens; // five digits, the last one never decoded, after the question
			if (ask == Ask::Prompt)
				CHECK(decoded == 2 * 5);
			else
				CHECK(decoded > 2 * 9);

			// The loss of a right answer is small; after eviction it is at least that of a guess among ten digits.
			REQUIRE(s[0].loss.size() == 2);
			CHECK(s[0].loss_mean < 0.2);
			CHECK(s[1].loss_mean == doctest::Approx(s[0].loss_mean).epsilon(0.05).scale(0.1));
			CHECK(s[2].loss_mean > 1);
			CHECK(s[0].loss_mean == doctest::Approx((s[0].loss[0] + s[0].loss[1]) / 2));
		}
	});
}
