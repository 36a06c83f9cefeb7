// Weights in host memory, which a device reads over the bus: the same bits as with all weights on the device, whatever
// lies where; bytes read are counted. KVRUN_TEST_CAPS describes a card with separate memory, on a driver that has one
// heap.
#include "tests/device/sequences.h"
#include "tests/support/scoped_env.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

const std::vector<Case> kModels = {{"qwen3moe"}, {"gpt_oss"}, {"llama_tied"}, {"gemma4_layer_inputs"}};
const std::string kCard = "mapped=1073741824"; // 1 GiB of host memory
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
		CHECK_THROWS_WITH_AS(Engine::open(o), doctest::Contains("would lie in host memory, which has 32.0 MiB"), Error);
	});
}
