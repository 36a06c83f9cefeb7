// Models and sessions at their limits: numbers that overflow or are NaN, equal logits, full contexts.
#include "engine/run/batch.h"
#include "engine/run/session_file.h"
#include "tests/device/sequences.h"
#include "tests/support/errors.h"
#include "tests/support/session_header.h"
#include "tests/support/temp_folder.h"
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <limits>
#include <set>

using namespace kvrun;

namespace {

// The tiny f32 model with changed numbers in one tensor: rows [first, first + n), n = 0: all.
std::string damaged_model(const TempFolder& folder, const char* tensor, uint64_t first, uint64_t n, float factor) {
	std::string bytes = file_text(kGolden + "tiny/llama.gguf");
	const Gguf file = Gguf::parse("llama.gguf", std::as_bytes(std::span(bytes)));
	const GgufTensor* t = file.find_tensor(tensor);
	REQUIRE(t);
	REQUIRE(t->type == DType::F32);
	if (n == 0) n = t->rows(); // all
	for (uint64_t i = first * t->cols(); i < (first + n) * t->cols(); ++i) {
		float x = 0;
		std::memcpy(&x, &bytes[t->at + 4 * i], 4);
		x *= factor;
		std::memcpy(&bytes[t->at + 4 * i], &x, 4);
	}
	const std::string path = folder.path / "damaged.gguf";
	std::ofstream(path, std::ios::binary) << bytes;
	return path;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

} // namespace

TEST_CASE("T15 limits: numbers that are none, or overflow, are an error that names the layer") {
	struct Damage {
		const char* tensor;
		float factor;
		const char* where;
	};
	constexpr Damage kDamages[] = {{"token_embd.weight", 1e30f, "error: the embeddings are not finite"},
	                               {"token_embd.weight", kNan, "error: the embeddings are not finite"},
	                               {"blk.0.ffn_down.weight", 1e30f, "error: the output of layer 0 is not finite"},
	                               {"blk.1.attn_q.weight", kNan, "error: the output of layer 1 is not finite"},
	                               {"blk.1.attn_k.weight", kNan, "error: the output of layer 1 is not finite"},
	                               {"blk.1.attn_v.weight", kNan, "error: the output of layer 1 is not finite"},
	                               {"blk.1.ffn_norm.weight", kNan, "error: the output of layer 1 is not finite"},
	                               {"output_norm.weight", kNan, "error: the logits are not finite"},
	                               {"output.weight", kNan, "error: the logits are not finite"}};
	each_row(std::vector<Case>{{"fp16"}, {"kivi2"}}, [&](Backend&, const Case& c, const TestRow& row) {
		for (const Damage& d : kDamages) {
			CAPTURE(std::string(d.tensor));
			const TempFolder folder;
			const auto engine = open_engine(row.device, damaged_model(folder, d.tensor, 0, 0, d.factor));
			Session s(*engine, with(c.name, 64));
			const auto message = [&](auto&& f) -> std::string {
				try {
					f();
				} catch (const Error& e) {
					CHECK(e.code == Code::Device);
					return std::string("error: ") + e.what();
				}
				return "none";
			};
			const std::vector<uint32_t> prompt{1, 2, 3};
			CHECK(message([&] { s.prefill(prompt); }).starts_with(d.where));
			CHECK(s.n_tokens() == 0); // as if there had been no prompt
			CHECK(message([&] { s.decode(4); }).starts_with(d.where));
			CHECK(s.n_tokens() == 1);
		}
	});
}

TEST_CASE("T15 limits: a token without numbers ends its own answer and no other") {
	each_row(std::vector<Case>{{"fp16"}}, [](Backend& backend, const Case& c, const TestRow& row) {
		const TempFolder folder;
		const auto engine = open_engine(row.device, damaged_model(folder, "token_embd.weight", 7, 1, 1e30f));
		Session a(*engine, with(c.name, 64)), b(*engine, with(c.name, 64));
		const std::vector<uint32_t> prompt{1, 2, 3};
		a.prefill(prompt);
		b.prefill(prompt);
		const auto alone = b.fork();
		const Floats want = keep(alone->decode(5));
		for (const uint32_t top : {0u, 1u}) {
			const SessionRow step[] = {{&a, 7, top}, {&b, 5, top}};
			const std::span<const RowLogits> logits = decode_step(step);
			REQUIRE(logits[0].fault);
			CHECK_THROWS_WITH_AS(std::rethrow_exception(logits[0].fault), doctest::Contains("the embeddings are not"),
			                     Error);
			CHECK(!logits[1].fault);
			if (top == 0 || !backend.info().lists_candidates) CHECK(keep(logits[1].all) == want);
			b.truncate(3);
			a.reset();
			a.prefill(prompt);
		}
		// a row without any numbers has no candidate list, and is read whole
		const TempFolder other;
		const auto broken = open_engine(row.device, damaged_model(other, "output.weight", 0, 0, kNan));
		Session s(*broken, with(c.name, 64));
		Sampler greedy({.temperature = 0});
		const SessionRow step{&s, 4, greedy.wanted()};
		const RowLogits logits = decode_step({&step, 1})[0];
		CHECK(logits.top.empty());
		CHECK(logits.all.size() == broken->config().vocab);
		CHECK(logits.fault);
		CHECK(s.n_tokens() == 1);
		// generation also ends with this error
		Session g(*engine, with(c.name, 64));
		CHECK_THROWS_WITH_AS(generate(g, std::vector<uint32_t>{1, 3, 7}, {}),
		                     doctest::Contains("the embeddings are not"), Error);
		CHECK(g.n_tokens() == 0);
	});
}

TEST_CASE("T38 limits: where all logits are equal, the lowest token is the likeliest, and sampling takes any") {
	each_row(std::vector<Case>{{"fp16"}, {"kivi2"}}, [](Backend&, const Case& c, const TestRow& row) {
		const TempFolder folder;
		const auto engine = open_engine(row.device, damaged_model(folder, "output.weight", 0, 0, 0));
		Session s(*engine, with(c.name, 64));
		const Floats first = keep(s.prefill(std::vector<uint32_t>{1, 2, 3}));
		CHECK(std::ranges::all_of(first, [](float x) { return x == 0; }));
		Sampler greedy({.temperature = 0}), few({.temperature = 1, .top_k = 40, .seed = 3}),
		    any({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 3});
		std::set<uint32_t> seen, seen_few;
		uint32_t token = 5;
		for (int i = 0; i < 20; ++i) {
			const SessionRow step{&s, token, i % 2 ? greedy.wanted() : 0};
			const RowLogits logits = decode_step({&step, 1})[0];
			REQUIRE(!logits.fault);
			CHECK(greedy.sample(logits) == 0);
			if (!logits.all.empty()) {
				seen.insert(token = any.sample(logits.all));
				seen_few.insert(few.sample(logits.all));
			}
		}
		CHECK(seen.size() > 5); // of 64 or more
		CHECK(*seen.rbegin() >= 40);
		CHECK(*seen_few.rbegin() < 40); // of equal logits those with the lowest ids are kept
		GenerateOptions o;
		o.n = 12, o.ignore_end = true, o.sampling.temperature = 0;
		Session g(*engine, with(c.name, 64));
		CHECK(generate(g, std::vector<uint32_t>{1, 2}, o).tokens == std::vector<uint32_t>(12, 0u));
	});
}

TEST_CASE("T34, T36 limits: contexts of 1, of a prompt's length, and of one token more") {
	each_row(std::vector<Case>{{"fp16"}, {"kivi2"}, {"streaming"}, {"h2o"}, {"mikv"}}, [](Backend&, const Case& c,
	                                                                                      const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/llama.gguf");
		const auto message = [](auto&& f) -> std::string {
			try {
				f();
			} catch (const Error& e) {
				CHECK(e.code == Code::Context);
				return e.what();
			}
			return "none";
		};
		const Tokens prompt = random_tokens(40, engine->config().vocab, 7);
		Session wide(*engine, with(c.name, 64));
		const Floats want = keep(wide.prefill(prompt)), next = keep(wide.decode(9));
		for (const uint32_t n : {1u, 40u}) {
			CAPTURE(n);
			const std::span<const uint32_t> head = std::span(prompt).first(n);
			Session exact(*engine, with(c.name, n));
			CHECK(exact.ctx() == n);
			// one token too many is refused, with counts, and changes nothing
			const Tokens more(n + 1, 3);
			CHECK(message([&] { exact.prefill(more); }) ==
			      fmt::format("the prompt has {} tokens, the context has room for {} of {}; raise -c or shorten it",
			                  n + 1, n, n));
			CHECK(exact.n_tokens() == 0);
			const Floats got = keep(exact.prefill(head));
			if (n == 40) CHECK(got == want);
			CHECK(exact.n_tokens() == n);
			CHECK(message([&] { exact.decode(9); }) == fmt::format("the context of {} tokens is full; raise -c", n));
			CHECK(exact.n_tokens() == n);
			// the first token may also be decoded
			exact.reset();
			if (n == 1) {
				CHECK(message([&] { exact.decode(prompt[0]); }) == "none");
				CHECK(message([&] { exact.decode(9); }).find("is full") != std::string::npos);
			}
			Session one_more(*engine, with(c.name, n + 1));
			one_more.prefill(head);
			const Floats step = keep(one_more.decode(9));
			if (n == 40) CHECK(step == next);
			CHECK(message([&] { one_more.decode(9); }).find("is full") != std::string::npos);
			// an answer ends when the context is full
			GenerateOptions o;
			o.n = 100, o.ignore_end = true, o.sampling.temperature = 0;
			Session g(*engine, with(c.name, n + 1));
			const GenerateResult r = generate(g, head, o);
			CHECK(r.reason == StopReason::Context);
			CHECK(r.tokens.size() == 2); // the last one is chosen but not stored
			CHECK(g.n_tokens() == n + 1);
		}
	});
}

TEST_CASE("T34 limits: a table of positions ends the context, and each row of a step has its own position") {
	each_row(std::vector<Case>{{"gpt2"}, {"starcoder"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, fmt::format("{}tiny/{}.gguf", kGolden, c.name));
		Code code = Code::Invalid;
		CHECK(error_of([&] { Session s(*engine, with("fp16", 257)); }, &code) ==
		      "the context is 257 tokens, the model has a table of 256 positions and none behind them; give -c 256 or "
		      "less");
		CHECK(code == Code::Context);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(250, vocab, 7), next = random_tokens(6, vocab, 8);
		Session plain(*engine, with("fp16", 256)), fast(*engine, with("fp16", 256));
		plain.prefill(prompt), fast.prefill(prompt);
		Floats want;
		for (const uint32_t t : next) {
			const Floats logits = keep(plain.decode(t));
			want.insert(want.end(), logits.begin(), logits.end());
		}
		CHECK(plain.n_tokens() == 256);
		const SessionRow r{&fast, next[0], 0, std::span(next).subspan(1)};
		Floats got;
		for (const RowLogits& l : decode_step({&r, 1})) got.insert(got.end(), l.all.begin(), l.all.end());
		check_same_bits(row, got, want);
	});
}

TEST_CASE("T15 limits: a session file with keys that are no numbers decodes to an error that names where") {
	each_row(std::vector<Case>{{"fp16"}}, [](Backend&, const Case& c, const TestRow& row) {
		const TempFolder folder;
		const std::string path = folder.path / "session.kvs";
		const auto engine = open_engine(row.device, kGolden + "tiny/llama.gguf");
		{
			Session s(*engine, with(c.name, 64));
			s.prefill(random_tokens(20, engine->config().vocab, 7));
			save_session(s, path, {});
		}
		std::string bytes = file_text(path);
		const std::span<std::byte> file = std::as_writable_bytes(std::span(bytes));
		size_t at = kHeaderBytes;
		for (size_t i = 0; i < 3; ++i) at += size_t(word(file, kSectionsAt + i * 16)); // facts, tokens, books
		const size_t n = size_t(word(file, kSectionsAt + 3 * 16));
		for (size_t i = at; i + 1 < at + n; i += 2) bytes[i] = '\0', bytes[i + 1] = '\x7e'; // NaN in f16
		seal(file);
		std::ofstream(path, std::ios::binary) << bytes;
		const auto s = restore_session(*engine, path, 0);
		REQUIRE(s->n_tokens() == 20);
		const auto check = [](auto&& f) {
			try {
				f();
				CHECK(false);
			} catch (const Error& e) {
				CHECK(e.code == Code::Device);
				CHECK(std::string(e.what()).starts_with("the output of layer 0 is not finite in f32"));
			}
		};
		check([&] { s->decode(4); });
		CHECK(s->n_tokens() == 21);
		check([&] { s->prefill(std::vector<uint32_t>{1, 2, 3}); });
		CHECK(s->n_tokens() == 21);
	});
}
