// The screen of formats by attention's error: a prompt stored under many policies equals the model reading it, and the
// screen orders layers and formats like the whole model.
#include "engine/run/store_as.h"
#include "engine/run/tuning_file.h"
#include "tests/device/sequences.h"
#include "tests/support/temp_folder.h"
#include "tools/eval/format_screen.h"
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

using namespace kvrun;

namespace {

const std::string kBundled = test_root() + "/models/bundled/recall-4m-f16.gguf";

Tokens some_text(const Engine& e, uint32_t lines) {
	return e.tokenizer().encode(recall_question(lines, 5, 0).record, {.bos = true});
}

std::vector<double> ranks(const std::vector<double>& x) {
	std::vector<size_t> order(x.size());
	std::iota(order.begin(), order.end(), 0);
	std::ranges::sort(order, {}, [&](size_t i) { return x[i]; });
	std::vector<double> out(x.size());
	for (size_t i = 0; i < order.size(); ++i) out[order[i]] = double(i);
	return out;
}
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) { // Spearman's
	const std::vector<double> x = ranks(a), y = ranks(b);
	double d2 = 0;
	for (size_t i = 0; i < x.size(); ++i) d2 += (x[i] - y[i]) * (x[i] - y[i]);
	const double n = double(x.size());
	return 1 - 6 * d2 / (n * (n * n - 1));
}

} // namespace

TEST_CASE("store_as: a prompt taken over from an f16 cache is the prompt the model reads, to the bit") {
	const std::vector<Case> rows = {{"recall"}, {"qwen3next"}, {"gemma3"}, {"deepseek2_v3"}, {"deepseek2_wide"}};
	each_row(rows, [&](Backend&, const Case& c, const TestRow& row) {
		const std::string file = c.name == "recall" ? kBundled : kGolden + "tiny/" + c.name + ".gguf";
		const auto e = open_engine(row.device, file, 64);
		const uint32_t vocab = e->config().vocab, n = c.name == "recall" ? 230 : 90;
		Tokens tokens = c.name == "recall" ? some_text(*e, 24) : Tokens();
		for (uint32_t i = uint32_t(tokens.size()); i < n + 12; ++i) tokens.push_back((i * 7919u + 3) % vocab);
		const std::span<const uint32_t> prompt = std::span(tokens).first(n), rest = std::span(tokens).subspan(n, 12);
		const SessionOptions f16 = with("fp16", 256);
		Session from(*e, f16);
		from.prefill(prompt);
		for (const char* kv : {"turbo3/2,group=32,flush=32", "kivi2,recent=32", "rtn4", "fp16"}) {
			CAPTURE(kv);
			Session read(*e, with(kv, 256)), taken(*e, with(kv, 256));
			read.prefill(prompt);
			store_as(taken, from);
			CHECK(taken.n_tokens() == n);
			CHECK(std::ranges::equal(taken.history(), read.history()));
			CHECK(taken.kv_bytes().total() == read.kv_bytes().total());
			CHECK(fed(taken, rest) == fed(read, rest));
			CHECK(taken.window_plan() == from.window_plan()); // its tokens stay when `from` ends
		}
		CHECK(from.n_tokens() == n);
		Session ranked(*e, with("zipcache", 256));
		CHECK_FALSE(can_store_as(ranked));
		CHECK_THROWS_WITH_AS(store_as(ranked, from), doctest::Contains("depends on queries"), Error);
		Session packed(*e, with("rtn4", 256)), other(*e, with("rtn4", 256));
		packed.prefill(prompt);
		CHECK_THROWS_WITH_AS(store_as(other, packed), doctest::Contains("f16 cache"), Error);
	});
}

TEST_CASE("attend_as: an f16 cache has no error, more bits have less, and a damaged layer shows in that layer alone") {
	each_row(std::vector<Case>{{"recall"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto e = open_engine(row.device, kBundled, 512);
		const Tokens tokens = some_text(*e, 24);
		CapturedPrompt prompt(*e, with("fp16", 512), std::span(tokens).first(320), 64);
		const auto error = [&](const char* kv) { return prompt.attention_error(parse_policy(kv)); };
		for (const double x : error("fp16")) CHECK(x < 1e-9);
		CHECK(prompt.kld(parse_policy("fp16")) < 1e-9);
		const std::vector<double> two = error("turbo2"), four = error("turbo4"), eight = error("turbo8");
		double sums[3] = {};
		for (size_t l = 0; l < two.size(); ++l) sums[0] += two[l], sums[1] += four[l], sums[2] += eight[l];
		CHECK(sums[0] > 3 * sums[1]);
		CHECK(sums[1] > 3 * sums[2]);
		const std::vector<double> one = error("turbo8,k.bits@3=1,v.bits@3=1");
		for (size_t l = 0; l < 3; ++l) CHECK(one[l] == eight[l]);
		CHECK(one[3] > 2 * two[3]);
	});
}

TEST_CASE("attend_as: latents and rotated keys, each with errors that fall with its bits") {
	each_row(std::vector<Case>{{"deepseek2_v3"}, {"deepseek2_wide"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf", 128);
		const Tokens tokens = random_tokens(400, e->config().vocab, 5);
		CapturedPrompt prompt(*e, with("fp16", 512), tokens, 64);
		const auto error = [&](const std::string& kv) { return prompt.attention_error(parse_policy(kv + ",sinks=0")); };
		for (const double x : error("fp16")) CHECK(x < 1e-9);
		CHECK(prompt.kld(parse_policy("fp16")) < 1e-7); // one of both prompts is expanded, which rounds keys of heads
		const auto falls = [&](std::initializer_list<const char*> policies, double factor) {
			std::vector<double> last;
			for (const char* kv : policies) {
				CAPTURE(kv);
				const std::vector<double> now = error(kv);
				for (size_t l = 0; l < last.size(); ++l) CHECK(now[l] < factor * last[l]);
				last = now;
			}
		};
		falls({"turbo2", "turbo3", "turbo4", "turbo8"}, 0.5);
		falls({"turbo2", "turbo8,k.scale=channel,k.bits=4"}, 0.5);
		falls({"turbo8,rope.bits=4", "turbo8"}, 0.8); // of the same latents
		const uint32_t last = e->config().n_layers - 1;
		const std::vector<double> eight = error("turbo8"), one = error(fmt::format("turbo8,k.bits@{}=1", last)),
		                          rope = error(fmt::format("turbo8,rope.bits@{}=4", last));
		for (uint32_t l = 0; l < last; ++l) CHECK((one[l] == eight[l] && rope[l] == eight[l]));
		CHECK(one[last] > 10 * eight[last]);
		CHECK(rope[last] > eight[last]);
	});
}

TEST_CASE("screen: latents: its order of formats is that of the whole model, and tuned policies keep their bits") {
	each_row(std::vector<Case>{{"deepseek2_v3"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu") return;
		const std::string model = kGolden + "tiny/" + c.name + ".gguf";
		const auto e = open_engine(row.device, model, 128);
		std::vector<Tokens> chunks;
		for (uint32_t i = 0; i < 3; ++i) chunks.push_back(random_tokens(320, e->config().vocab, 50 + i));
		const Screened r = screen_formats(*e, with("fp16", 512), chunks, {.scored = 64, .budgets = {2.7, 3, 4}});
		const KvShape shape = e->kv_shape();
		REQUIRE(r.tuning.layers.size() == shape.n_layers);
		std::vector<double> said, is;
		std::vector<std::unique_ptr<CapturedPrompt>> prompts;
		for (const Tokens& chunk : chunks)
			prompts.push_back(std::make_unique<CapturedPrompt>(*e, with("fp16", 512), chunk, 64));
		// More prompts for the order: where an error changes the choice of experts, it counts many times over.
		std::vector<std::unique_ptr<CapturedPrompt>> more;
		for (uint32_t i = 0; i < 60; ++i)
			more.push_back(std::make_unique<CapturedPrompt>(*e, with("fp16", 512),
			                                                random_tokens(320, e->config().vocab, 80 + i), 64));
		const auto mean = [](const auto& of, const std::string& kv) {
			double sum = 0;
			for (const auto& p : of) sum += p->kld(parse_policy(kv)) / double(of.size());
			return sum;
		};
		const auto kld = [&](const std::string& kv) { return mean(prompts, kv); };
		for (uint32_t l = 0; l < shape.n_layers; ++l)
			for (const bool is_k : {true, false})
				for (int i = 0; i < kNSideFormats; ++i) {
					const double cost = (is_k ? r.tuning.layers[l].k : r.tuning.layers[l].v)[size_t(i)];
					CHECK(std::isfinite(cost) == has_side_format(kSideFormats[i], is_k, true));
					if (!std::isfinite(cost) || i == kEightBits) continue;
					said.push_back(cost);
					is.push_back(mean(more, "turbo8" + side_options(kSideFormats[i], is_k, l, l, true)));
				}
		REQUIRE(said.size() == shape.n_layers * 9);
		CHECK(rank_correlation(said, is) > 0.9);
		for (const Budget& b : r.budgets) {
			CAPTURE(b.policy);
			CHECK(b.measured > 0);
			CHECK(b.expected < 2.5 * b.measured);
			CHECK(b.measured < 2.5 * b.expected);
			CHECK(packed_bits(make_plan(parse_policy(b.policy), shape)) <= b.bits + 1e-9);
			CHECK(kld(b.policy) == doctest::Approx(b.measured));
		}
		// The file holds what was measured.
		const TempFolder folder;
		const std::string copy = folder.path / "model.gguf";
		std::filesystem::copy_file(model, copy);
		const Gguf g = Gguf::open(copy);
		write_tuning(tuning_path(g), g, r.tuning, "a test");
		const std::optional<Tuning> read = read_tuning(g, shape);
		REQUIRE(read);
		for (uint32_t l = 0; l < shape.n_layers; ++l) {
			CHECK(read->layers[l].k == r.tuning.layers[l].k);
			CHECK(read->layers[l].v == r.tuning.layers[l].v);
		}
		CHECK_THROWS_WITH_AS(read_tuning(g, {shape.n_layers, 1, 32}), doctest::Contains("needs k and v"), Error);
	});
}

TEST_CASE("screen: its order of layers and formats is that of the whole model, and its choices cost what it says") {
	each_row(std::vector<Case>{{"recall"}}, [](Backend&, const Case&, const TestRow& row) {
		if (row.device != "cpu") return; // the others compute the same, and take several times as long
		const auto e = open_engine(row.device, kBundled, 512);
		const Tokens tokens = e->tokenizer().encode(tuning_records(3), {.bos = true});
		REQUIRE(tokens.size() >= 384);
		const std::vector<Tokens> chunks = {Tokens(tokens.begin(), tokens.begin() + 384)};
		const auto bits = [&](const char* kv) { return packed_bits(make_plan(parse_policy(kv), e->kv_shape())); };
		const ScreenOptions options{.scored = 64, .budgets = {2, bits("turbo3/2"), bits("turbo4")}};
		const Screened r = screen_formats(*e, with("fp16", 512), chunks, options);
		REQUIRE(r.tuning.layers.size() == 4);
		CHECK(r.chunks == 1);
		CHECK(r.end_to_end == 1 + 2 * 4 + 3);
		// Formats and layers that the screen did not measure through the model.
		CapturedPrompt prompt(*e, with("fp16", 512), chunks[0], 64);
		std::vector<double> said, next, is; // next: of another layer
		for (uint32_t l = 0; l < 4; ++l)
			for (const int format : {0, 2, 6}) // 1 and 3 bits as a codebook, 3 uniform
				for (const bool is_k : {true, false}) {
					const LayerCost &c = r.tuning.layers[l], &n = r.tuning.layers[(l + 1) % 4];
					said.push_back((is_k ? c.k : c.v)[size_t(format)]);
					next.push_back((is_k ? n.k : n.v)[size_t(format)]);
					is.push_back(prompt.kld(parse_policy("turbo8" + side_options(kSideFormats[format], is_k, l, l))));
				}
		CHECK(rank_correlation(said, is) > 0.85);
		CHECK(rank_correlation(next, is) < 0.5);
		REQUIRE(r.budgets.size() == 3);
		for (const Budget& b : r.budgets) {
			CAPTURE(b.policy);
			CHECK(b.measured > 0);
			CHECK(b.expected < 2.5 * b.measured);
			CHECK(b.measured < 2.5 * b.expected);
			CHECK(prompt.kld(parse_policy(b.policy)) == doctest::Approx(b.measured));
		}
		// The chosen formats are better than fixed policies with as many bits.
		CHECK(r.budgets[1].measured < 0.8 * prompt.kld(parse_policy("turbo3/2")));
		CHECK(r.budgets[2].measured < 0.8 * prompt.kld(parse_policy("turbo4")));
		const Screened stopped =
		    screen_formats(*e, with("fp16", 512), chunks, {.scored = 64}, {[](double done) { return done < 0.1; }});
		CHECK(stopped.chunks == 0);
		const std::vector<Tokens> little = {Tokens(tokens.begin(), tokens.begin() + 130)};
		CHECK_THROWS_WITH_AS(screen_formats(*e, with("fp16", 512), little, {.scored = 64}),
		                     doctest::Contains("nothing of the text was packed"), Error);
	});
}

TEST_CASE("tune's records are none that an evaluation asks about") {
	const auto lines_of = [](const std::string& text) {
		std::set<std::string> out;
		for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
			if (text.compare(at, 5, "line ") == 0) out.insert(text.substr(at, end - at));
		return out;
	};
	const std::set<std::string> tuned = lines_of(tuning_records(12));
	CHECK(tuned.size() == 12 * 12);
	for (uint64_t seed = 0; seed < 32; ++seed)
		for (uint32_t i = 0; i < 12; ++i)
			for (const std::string& line : lines_of(recall_question(12, seed, i).record)) CHECK(!tuned.contains(line));
}
