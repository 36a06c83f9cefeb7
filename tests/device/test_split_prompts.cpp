// Prompts of a model that is divided over devices: each device takes a slice of rows through its layers while the next
// device takes the slice before through its own. The bits are those of one device, and devices work at the same time.
#include "tests/device/split_pair.h"
#include "tests/support/scoped_env.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

constexpr double kWholePrompt = 1e9, kFewRows = 1e-9; // seconds of a piece

// Two prompts, the second one behind the first one's cache, in seven slices and three, and two tokens.
Floats sliced_turns(Engine& e, const std::string& kv, double piece = Prefill::kPieceSeconds) {
	const uint32_t vocab = e.config().vocab;
	Session s(e, with(kv, 320));
	Floats all;
	for (const uint32_t n : {200, 90}) {
		{
			Prefill p(s, random_tokens(n, vocab, n));
			while (!p.step(piece)) {}
			all.insert(all.end(), p.logits().begin(), p.logits().end());
		}
		const Floats step = keep(s.decode(best(std::span(all).last(vocab))));
		all.insert(all.end(), step.begin(), step.end());
	}
	return all;
}

// The cpu backend with the clock of a device that works beside the host. An op takes 1 from when it is submitted and
// the ops before it on its device have ended; a wait moves the host's time. So a schedule has a length that depends on
// nothing else.
class ClockedBackend final : public CpuBackend {
 public:
	ClockedBackend() : CpuBackend(false) {}
	void run(const Op& op) override { CpuBackend::run(op), recorded_ += 1, ops += 1; }
	void submit() override { end_ = std::max(end_, now) + recorded_, recorded_ = 0; }
	uint64_t mark() override {
		submit();
		marks_.push_back(end_);
		return marks_.size();
	}
	void wait() override { now = std::max(now, end_), CpuBackend::wait(); }
	void wait_for(uint64_t mark) override { now = std::max(now, marks_[mark - 1]), CpuBackend::wait(); }
	bool done(uint64_t mark) override { return marks_[mark - 1] <= now; }
	static inline double now = 0, ops = 0; // the host's time; ops of all devices

 private:
	double end_ = 0, recorded_ = 0;
	std::vector<double> marks_;
};

} // namespace

TEST_CASE("split: prompts pass the devices in slices, with the bits of one device, for every kind of layer") {
	const std::vector<Case> models = {{"llama"},       {"qwen3moe"},        {"gpt_oss"},      {"gemma3"},
	                                  {"gemma3n"},     {"qwen35moe"},       {"deepseek2_v3"}, {"gemma4_shared"},
	                                  {"phi3_window"}, {"falcon_h1"},       {"nemotron_h"},   {"llama4"},
	                                  {"qwen4exp"},    {"qwen4exp_sparse"}, {"deepseek32"},   {"glm_dsa"},
	                                  {"glm5_next"},   {"hy_v4"},           {"minimax_m3"},   {"kimi_k3"}};
	each_row(models, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = kGolden + "tiny/" + c.name + ".gguf";
		const Floats want = sliced_turns(*open_engine(row.device, model, 32), "fp16");
		with_divisions(row, model, [&](Engine& e) {
			check_same_bits({row.device, row.number, c.name}, sliced_turns(e, "fp16"), want);
		});
	});
}

TEST_CASE("split: prompts in slices under every kind of policy, in long and short pieces") {
	const std::vector<Case> policies = {{"fp16"},      {"kivi2"},     {"mixed"},           {"zipcache"},
	                                    {"mikv"},      {"turbo3/2"},  {"logquant"},        {"h2o"},
	                                    {"streaming"}, {"specache2"}, {"xquant,km=0,vm=0"}};
	each_row(policies, [](Backend& be, const Case& c, const TestRow& row) {
		const std::string model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
		const uint32_t n = layers_of(model);
		const Floats want = sliced_turns(*open_engine(row.device, model, 32), c.name);
		const auto engine = open_pair(row, model, {2, n - 2});
		for (const double piece : {kWholePrompt, Prefill::kPieceSeconds, kFewRows}) {
			if (piece == kFewRows && row.number % 4) continue; // they take long
			check_same_bits({row.device, row.number, c.name}, sliced_turns(*engine, c.name, piece), want);
		}
		// A slice is given away while the device that gets it works on the slice before. The cpu backend is never
		// behind.
		if (be.name() == std::string("vulkan")) CHECK(g_pair.opened->worked_together() > 0);
	});
}

TEST_CASE("split: two devices read a prompt in two thirds of the time of one, three in half") {
	each_row(std::vector<Case>{{"6 layers"}}, [](Backend& be, const Case&, const TestRow& row) {
		if (be.name() != std::string("cpu")) return; // the clock is the cpu backend's
		const std::string model = "synth:llama-3.1-8b,layers=6,dim=64,hidden=128,vocab=1024:f16";
		for (const uint32_t parts : {2, 3}) {
			const auto engine = open_pair(row, model, std::vector<uint32_t>(parts, 6 / parts), false, {},
			                              [] { return std::make_unique<ClockedBackend>(); });
			const auto time_of = [&](PrefillHooks hooks) { // of the prompt, as a share of the time of all its ops
				Session s(*engine, with("fp16", 700));
				s.prefill(random_tokens(1, 1024, 6)); // the device's pace is known from here on
				const double start = ClockedBackend::now, ops = ClockedBackend::ops;
				Prefill p(s, random_tokens(320, 1024, 7), std::move(hooks)); // 10 slices
				while (!p.step(kWholePrompt)) {}
				return (ClockedBackend::now - start) / (ClockedBackend::ops - ops);
			};
			// A device waits for parts - 1 slices of 10. The last one has less to do: of the last layer keys and
			// values.
			const double together = time_of({});
			CHECK(together < (parts == 2 ? 0.65 : 0.5));
			CHECK(together >= 1. / parts);
			// Queries are given layer by layer: the devices work in turn.
			CHECK(time_of({.queries = [](const QueryRows&) {}}) > 0.9);
		}
	});
}

TEST_CASE("split: prompts in slices that are cancelled or take turns, and other answers between their pieces") {
	each_row(std::vector<Case>{{"fp16"}, {"kivi2"}, {"h2o"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = kGolden + "tiny/llama.gguf";
		const auto whole = open_engine(row.device, model, 32);
		const auto engine = open_pair(row, model, {1, layers_of(model) - 1});
		const TestRow again{row.device, row.number, c.name};
		const uint32_t vocab = engine->config().vocab;
		const Tokens one = random_tokens(200, vocab, 1), two = random_tokens(130, vocab, 2), before(9, 3);
		const auto ask = [&](Engine& e, const Tokens& t) {
			Session s(e, with(c.name, 256));
			return greedy_logits(s, t, 2);
		};
		const Floats first = ask(*whole, one), second = ask(*whole, two), third = ask(*whole, before);
		for (uint32_t pieces = 1; pieces < 16; pieces += 5) {
			Session s(*engine, with(c.name, 256));
			Floats steps = keep(s.prefill(before));
			{
				Prefill p(s, one);
				for (uint32_t i = 0; i < pieces; ++i) p.step(kFewRows);
			} // cancelled, with rows between the devices
			CHECK(s.n_tokens() == before.size());
			for (int i = 0; i < 2; ++i) add_greedy_step(s, steps, vocab);
			check_same_bits(again, steps, third);
		}
		Session a(*engine, with(c.name, 256)), b(*engine, with(c.name, 256)), d(*engine, with(c.name, 64));
		Floats steps = keep(d.prefill(before));
		Prefill p(a, one), q(b, two);
		for (uint32_t i = 0; !p.done() || !q.done(); ++i) {
			p.step(kFewRows), q.step(kFewRows);
			if (i < 2) add_greedy_step(d, steps, vocab);
		}
		check_same_bits(again, keep(p.logits()), Floats(first.begin(), first.begin() + vocab));
		check_same_bits(again, keep(q.logits()), Floats(second.begin(), second.begin() + vocab));
		check_same_bits(again, steps, third);
	});
}

TEST_CASE("split: each device copies its layers' weights in host memory through a ring of its own") {
	const std::vector<Case> models = {{"llama"}, {"qwen3moe"}, {"blocks"}};
	each_row(models, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = c.name == "blocks" ? kBlocks : kGolden + "tiny/" + c.name + ".gguf";
		const Floats want = sliced_turns(*open_engine(row.device, model, 32), "kivi2");
		for (const char* queue : {"", ",transfer=2"}) {
			const ScopedEnv caps("KVRUN_TEST_CAPS", std::string("mapped=1073741824,visible=0") + queue);
			uint64_t bus[2] = {};
			for (const int ring : {0, 1}) {
				const auto engine = open_pair(row, model, {1, layers_of(model) - 1}, /*last_fails=*/false,
				                              WeightOptions{.gpu_layers = 0, .ring = double(ring)});
				if (!engine->backend().info().mapped_bytes) return;
				CHECK((engine->ring().bytes() > 0) == (ring > 0));
				check_same_bits({row.device, row.number, c.name}, sliced_turns(*engine, "kivi2"), want);
				const uint64_t before = engine->backend().mapped_bytes_read();
				Session s(*engine, with("fp16", 256));
				Prefill p(s, random_tokens(200, engine->config().vocab, 1));
				while (!p.step(kWholePrompt)) {}
				bus[ring] = engine->backend().mapped_bytes_read() - before;
			}
			CHECK(bus[1] < bus[0]);
		}
	});
}

TEST_CASE("split: a device that fails in a prompt is named, and the other devices' slices are given up") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = kGolden + "tiny/" + c.name + ".gguf";
		FailingBackend::fails = false;
		const auto engine = open_pair(row, model, {1, layers_of(model) - 1}, /*last_fails=*/true);
		const Tokens prompt = random_tokens(200, engine->config().vocab, 1);
		const auto ask = [&] {
			Session s(*engine, with("fp16", 256));
			return greedy_logits(s, prompt, 1);
		};
		const Floats want = ask();
		for (const uint32_t pieces : {1, 3, 6}) {
			Session s(*engine, with("fp16", 256));
			Prefill p(s, prompt);
			for (uint32_t i = 0; i < pieces; ++i) p.step(kFewRows);
			FailingBackend::fails = true;
			CHECK_THROWS_WITH_AS(p.step(kWholePrompt), doctest::Contains("failing card: the driver reset the device"),
			                     Error);
			FailingBackend::fails = false;
		}
		check_same_bits({row.device, row.number, c.name}, ask(), want);
	});
}
