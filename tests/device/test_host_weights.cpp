// Weights in host memory, which a device reads over the bus: the same bits as with all weights on the device, whatever
// lies where; bytes read are counted. KVRUN_TEST_CAPS describes a card with separate memory, on a driver that has one
// heap.
#include "tests/device/sequences.h"
#include "tests/support/scoped_env.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

const std::vector<Case> kModels = {{"qwen3moe"}, {"gpt_oss"}, {"llama_tied"}, {"gemma4_layer_inputs"}, {"nanbeige"}};
const std::string kCard = "mapped=1073741824,visible=0"; // 1 GiB of host memory
// 300 MB, three times what a heap of 128 MiB has free.
const std::string kLarge = "synth:llama-3.1-8b,layers=9,dim=1024,hidden=2048,vocab=4000:f16";

EngineOptions options_of(const TestRow& row, const std::string& model) {
	EngineOptions o;
	o.model = model;
	o.backend = select_test_device(row.device);
	o.fit_ctx = 64;
	o.ubatch = 32;
	return o;
}

Floats answer(Engine& e) {
	Session s(e, with("fp16", 64));
	return greedy_logits(s, random_tokens(24, e.config().vocab, 5), 3);
}

// A prompt that passes a layer in six slices, and what follows it.
Floats sliced_answer(Engine& e, uint32_t n = 170) {
	Session s(e, with("fp16", 256));
	return greedy_logits(s, random_tokens(n, e.config().vocab, 5), 2);
}
uint64_t prompt_bus_bytes(Engine& e, uint32_t n = 170) {
	Session s(e, with("fp16", 256));
	s.prefill(random_tokens(1, e.config().vocab, 6)); // the device's pace is known from here on
	const uint64_t before = e.backend().mapped_bytes_read();
	Prefill p(s, random_tokens(n, e.config().vocab, 6));
	constexpr double kWhole = 1e9; // seconds of a piece: slices are not cut, however slow the device is
	while (!p.step(kWhole)) {}
	return e.backend().mapped_bytes_read() - before;
}
// Copies in order with ops, and in submissions of their own.
const char* const kQueues[] = {",transfer=0", ",transfer=2"};

// Whether the row's device reads host memory in place, as CUDA does, or can be described as one that does.
bool has_bus(Engine& e) { return e.backend().info().mapped_bytes > 0; }

} // namespace

TEST_CASE(
    "host weights: the bits are those of weights on the device, whatever lies where; the bytes read are counted") {
	each_row(kModels, [](Backend&, const Case& c, const TestRow& row) {
		const ScopedEnv caps("KVRUN_TEST_CAPS", kCard);
		const std::string model = kGolden + "tiny/" + c.name + ".gguf";
		EngineOptions o = options_of(row, model);
		const auto whole = Engine::open(o);
		CHECK(whole->host_weight_bytes() == 0);
		CHECK(whole->weights_text() == "");
		const Floats want = answer(*whole);
		CHECK(whole->backend().mapped_bytes_read() == 0);
		const bool bus = has_bus(*whole);
		const uint64_t all = whole->weight_plan().bytes(), fixed = whole->weight_plan().fixed_bytes();
		const WeightOptions divisions[] = {
		    {.gpu_layers = 0}, {.gpu_layers = 1}, {.cpu_moe_layers = 1}, {.budget = fixed + (all - fixed) / 2}};
		for (const WeightOptions& w : divisions) {
			o.weights = w;
			const auto engine = Engine::open(o);
			CAPTURE(engine->weights_text());
			check_same_bits({row.device, row.number, c.name}, answer(*engine), want);
			const WeightPlan& plan = engine->weight_plan();
			if (!bus) { // memory is shared with the host anyway
				CHECK(engine->host_weight_bytes() == 0);
				continue;
			}
			CHECK((plan.host_bytes() > 0) == (!w.cpu_moe_layers || c.name == "qwen3moe" || c.name == "gpt_oss"));
			CHECK(engine->host_weight_bytes() >= plan.host_bytes()); // alignment of tensors included
			Session s(*engine, with("fp16", 64));
			s.prefill(random_tokens(9, engine->config().vocab, 6));
			const uint64_t before = engine->backend().mapped_bytes_read();
			s.decode(3);
			CHECK(engine->backend().mapped_bytes_read() - before == plan.host_token_bytes());
		}
	});
}

TEST_CASE("host weights: a model three times as large as the device's memory has the same bits as without that limit") {
	each_row(std::vector<Case>{{"card"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions o = options_of(row, kLarge);
		const Floats want = answer(*Engine::open(o));
		const ScopedEnv caps("KVRUN_TEST_CAPS", kCard + ",heap=134217728");
		o.backend = select_test_device(row.device);
		std::unique_ptr<Engine> engine;
		{
			const DeviceInfo d = open_backend(o.backend)->info();
			if (d.shares_memory || d.free_bytes > 128 << 20) return; // its memory cannot be described
			engine = Engine::open(o);
			CHECK(engine->weight_bytes() > d.free_bytes * 29 / 10);
		}
		CHECK(engine->host_weight_bytes() > engine->weight_bytes() / 2);
		CHECK(engine->weights_text().find("in host memory, read over the bus") != std::string::npos);
		check_same_bits({row.device, row.number, c.name}, answer(*engine), want);
		o.weights.fit = false; // as before: it does not fit
		CHECK_THROWS_WITH_AS(Engine::open(o), doctest::Contains("MiB are free"), Error);
		o.weights.fit = true;
		const ScopedEnv little("KVRUN_TEST_CAPS", "mapped=33554432,heap=134217728");
		o.backend = select_test_device(row.device);
		const double free = double(open_backend(o.backend)->info().mapped_bytes) / (1 << 20);
		CHECK(free <= 32);
		const std::string text = fmt::format("would lie in host memory, which has {:.1f} MiB", free);
		CHECK_THROWS_WITH_AS(Engine::open(o), doctest::Contains(text.c_str()), Error);
	});
}

TEST_CASE("host weights: a prompt copies each layer to the device once; the bits are those of reading in place") {
	each_row(kModels, [](Backend& be, const Case& c, const TestRow& row) {
		for (const char* queue : kQueues) {
			if (queue != kQueues[0] && be.name() != std::string("vulkan")) continue; // has one queue
			const ScopedEnv caps("KVRUN_TEST_CAPS", kCard + queue);
			EngineOptions o = options_of(row, kGolden + "tiny/" + c.name + ".gguf");
			o.weights = {.gpu_layers = 0, .ring = 0};
			const auto in_place = Engine::open(o);
			if (!has_bus(*in_place)) return;
			CHECK(in_place->ring().bytes() == 0);
			const size_t activations = in_place->activation_bytes();
			const Floats want = sliced_answer(*in_place);
			o.weights.ring = 1;
			const auto engine = Engine::open(o);
			const RingSize ring = engine->weight_plan().ring();
			CHECK(ring.slots == std::min(2u, engine->config().n_layers));
			CHECK(engine->ring().bytes() == ring.bytes());
			CHECK(engine->activation_bytes() == activations + ring.bytes());
			CHECK(engine->weights_text().find("; prompts copy them through ") != std::string::npos);
			const TestRow again{row.device, row.number, c.name};
			check_same_bits(again, sliced_answer(*engine), want);
			check_same_bits(again, sliced_answer(*engine), want); // slots hold layers of the prompt before
			CHECK(prompt_bus_bytes(*engine) < prompt_bus_bytes(*in_place));
			// one tile of rows: a copy saves nothing of dense weights
			if (c.name == "llama_tied") CHECK(prompt_bus_bytes(*engine, 20) == prompt_bus_bytes(*in_place, 20));
			// decode steps read in place
			Session a(*engine, with("fp16", 64)), b(*in_place, with("fp16", 64));
			for (Session* s : {&a, &b}) s->prefill(random_tokens(9, engine->config().vocab, 6));
			const uint64_t before = engine->backend().mapped_bytes_read(),
			               other = in_place->backend().mapped_bytes_read();
			a.decode(3), b.decode(3);
			CHECK(engine->backend().mapped_bytes_read() - before == in_place->backend().mapped_bytes_read() - other);
		}
	});
}

TEST_CASE("host weights: a dense model's layers cross the bus once per block of a prompt, whatever the slices") {
	each_row(std::vector<Case>{{"dense"}}, [](Backend&, const Case&, const TestRow& row) {
		const ScopedEnv caps("KVRUN_TEST_CAPS", kCard);
		EngineOptions o = options_of(row, "synth:llama-3.1-8b,layers=3,dim=128,hidden=256,vocab=1024:f16");
		o.weights = {.gpu_layers = 0, .ring = 1};
		const auto engine = Engine::open(o);
		if (!has_bus(*engine)) return;
		uint64_t copied = 0, last = 0; // bytes of the layers before the last one, and of the last one
		for (const WeightGroup& g : engine->weight_plan().groups())
			if (g.part == WeightPart::Mlp || g.part == WeightPart::Attention) (g.layer == 2 ? last : copied) += g.bytes;
		const uint64_t five = prompt_bus_bytes(*engine, 32 * 5), six = prompt_bus_bytes(*engine, 32 * 6);
		constexpr uint64_t kRow = 128 * 2; // bytes of the embedding and of the output
		CHECK(six >= copied);
		CHECK(six <= copied + 6 * last + 1024 * kRow + 192 * kRow);
		CHECK(six - five <= last + 32 * kRow); // of the last layer, keys and values only
		o.prefill_block = 96;
		const auto halves = Engine::open(o);
		CHECK(prompt_bus_bytes(*halves, 32 * 6) >= 2 * copied); // each copies the layers
	});
}

TEST_CASE("host weights: what does not fit the ring is read in place; without memory for one, everything is") {
	each_row(std::vector<Case>{{"partly"}}, [](Backend& be, const Case& c, const TestRow& row) {
		EngineOptions o = options_of(row, kLarge);
		const BackendOptions whole = o.backend;
		const ScopedEnv caps("KVRUN_TEST_CAPS", kCard + ",transfer=2,heap=134217728");
		o.backend = select_test_device(row.device);
		if (const DeviceInfo d = open_backend(o.backend)->info(); d.shares_memory || d.free_bytes > 128 << 20) return;
		const auto engine = Engine::open(o);
		o.backend = whole;
		const Floats want = sliced_answer(*Engine::open(o));
		const RingSize ring = engine->weight_plan().ring();
		CHECK(ring.slot_bytes > 4 << 20);
		CHECK(ring.slot_bytes < 10 << 20); // less than a layer
		check_same_bits({row.device, row.number, c.name}, sliced_answer(*engine), want);
		Weights some;
		some.host_bytes = 1;
		const WeightRing none(be, engine->config(), some, {uint64_t(1) << 45, 2});
		CHECK(none.bytes() == 0);
		CHECK(!none.usable());
	});
}

TEST_CASE("host weights: prompts that are cancelled or take turns, and other answers between their pieces") {
	each_row(std::vector<Case>{{"qwen3moe"}, {"llama_tied"}}, [](Backend& be, const Case& c, const TestRow& row) {
		for (const char* queue : kQueues) {
			if (queue != kQueues[0] && be.name() != std::string("vulkan")) continue; // has one queue
			const ScopedEnv caps("KVRUN_TEST_CAPS", kCard + queue);
			EngineOptions o = options_of(row, kGolden + "tiny/" + c.name + ".gguf");
			const auto whole = Engine::open(o);
			o.weights = {.gpu_layers = 0, .ring = 1};
			const auto engine = Engine::open(o);
			const TestRow again{row.device, row.number, c.name};
			const uint32_t vocab = engine->config().vocab;
			const Tokens one = random_tokens(170, vocab, 1), two = random_tokens(130, vocab, 2);
			const auto ask = [&](Engine& e, const Tokens& t) {
				Session s(e, with("fp16", 256));
				return greedy_logits(s, t, 2);
			};
			const Floats first = ask(*whole, one), second = ask(*whole, two);
			constexpr double kShort = 1e-9; // seconds: pieces of a few rows
			for (uint32_t pieces = 1; pieces < 12; pieces += 3) {
				Session s(*engine, with("fp16", 256));
				Prefill p(s, one);
				for (uint32_t i = 0; i < pieces; ++i) p.step(kShort);
			} // cancelled, with copies under way
			check_same_bits(again, ask(*engine, one), first);
			Session a(*engine, with("fp16", 256)), b(*engine, with("fp16", 256)), d(*engine, with("fp16", 64));
			const Floats third = ask(*whole, Tokens(9, 3));
			Floats steps = keep(d.prefill(Tokens(9, 3)));
			Prefill p(a, one), q(b, two); // one of them has the ring
			for (uint32_t i = 0; !p.done() || !q.done(); ++i) {
				p.step(kShort), q.step(kShort);
				if (i < 2) add_greedy_step(d, steps, vocab);
			}
			check_same_bits(again, keep(p.logits()), Floats(first.begin(), first.begin() + vocab));
			check_same_bits(again, keep(q.logits()), Floats(second.begin(), second.begin() + vocab));
			check_same_bits(again, steps, third);
		}
	});
}

TEST_CASE("host weights: every op of a prompt with copied weights agrees with the cpu backend") {
	each_row(kModels, [](Backend&, const Case& c, const TestRow& row) {
		const ScopedEnv caps("KVRUN_TEST_CAPS", kCard + ",transfer=2");
		EngineOptions o = options_of(row, kGolden + "tiny/" + c.name + ".gguf");
		o.weights = {.gpu_layers = 0, .ring = 1};
		o.backend.check = true;
		const auto engine = Engine::open(o);
		CHECK_NOTHROW(sliced_answer(*engine, 70));
	});
}
