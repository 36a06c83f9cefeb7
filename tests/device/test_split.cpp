// The layers of a model divided over several devices: the same bits as on one of them, tokens of another's results
// where the devices differ, wrong lists refused.
#include "backends/split_devices.h"
#include "engine/core/npy.h"
#include "engine/run/session_file.h"
#include "tests/device/split_pair.h"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

std::string tiny(const std::string& name) { return name == "blocks" ? kBlocks : kGolden + "tiny/" + name + ".gguf"; }

// Two turns, decode steps, a fork that goes another way, and a session that was saved and restored.
Floats long_answer(Engine& e, const std::string& kv) {
	const uint32_t vocab = e.config().vocab;
	Session s(e, with(kv, 128));
	s.prefill(random_tokens(41, vocab, 5));
	Floats all = fed(s, random_tokens(6, vocab, 6));
	const Floats second = prompt_logits(s, random_tokens(19, vocab, 7));
	all.insert(all.end(), second.begin(), second.end());
	const auto other = s.fork();
	for (Session* x : {other.get(), &s}) {
		const Floats more = fed(*x, random_tokens(5, vocab, x == &s ? 8 : 9));
		all.insert(all.end(), more.begin(), more.end());
	}
	return all;
}

} // namespace

TEST_CASE("split: a model divided over two devices of one kind has the bits of one device, for every kind of layer") {
	const std::vector<Case> models = {{"llama"},       {"llama_tied"},    {"qwen3moe"},   {"gpt_oss"},
	                                  {"gemma3"},      {"gemma4_shared"}, {"gemma3n"},    {"qwen35moe"},
	                                  {"llama4"},      {"deepseek2_v3"},  {"blocks"},     {"command_r"},
	                                  {"phi3_window"}, {"falcon_h1"},     {"nemotron_h"}, {"mamba2"},
	                                  {"jamba"},       {"gptneox"},       {"qwen4exp"},   {"qwen4exp_sparse"},
	                                  {"deepseek32"},  {"glm_dsa"},       {"glm5_next"},  {"hy_v4"},
	                                  {"kimi_k3"},     {"arctic"},        {"gpt2"},       {"talkie"},
	                                  {"mimo2"},       {"bitnet"},        {"minimax_m3"}, {"rwkv7"}};
	each_row(models, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = tiny(c.name);
		const Floats want = long_answer(*open_engine(row.device, model, 32), "fp16");
		with_divisions(row, model, [&](Engine& e) {
			check_same_bits({row.device, row.number, c.name}, long_answer(e, "fp16"), want);
			CHECK(g_pair.opened->handed_over() > 0);
		});
	});
}

TEST_CASE("split: every policy has the bits of one device") {
	const std::vector<Case> policies = {{"kivi2"},
	                                    {"kivi4"},
	                                    {"rtn4"},
	                                    {"turbo3/2"},
	                                    {"mixed"},
	                                    {"zipcache"},
	                                    {"mikv"},
	                                    {"logquant"},
	                                    {"h2o"},
	                                    {"streaming"},
	                                    {"specache2"},
	                                    {"specache1,fetch=12,recent_keep=8,flush=32"},
	                                    {"xquant,km=0,vm=0"},
	                                    {"asymkv"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
		const uint32_t n = layers_of(model);
		const auto whole = open_engine(row.device, model, 32);
		const Floats want = long_answer(*whole, c.name);
		const auto engine = open_pair(row, model, {2, n - 2}); // neighbours that share codes stay together
		check_same_bits({row.device, row.number, c.name}, long_answer(*engine, c.name), want);
	});
}

TEST_CASE("split: sequences of different policies in one step, and files of sessions between splits") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = tiny(c.name);
		const TempFolder folder;
		const uint32_t n = layers_of(model);
		const auto whole = open_engine(row.device, model, 32);
		const auto split = open_pair(row, model, {n - 1, 1});
		const Tokens prompt = random_tokens(50, whole->config().vocab, 3),
		             next = random_tokens(9, whole->config().vocab, 4);
		const auto answers = [&](Engine& e, const std::string& file) {
			std::vector<std::unique_ptr<Session>> all;
			for (const char* kv : {"fp16", "kivi2", "zipcache"}) {
				all.push_back(std::make_unique<Session>(e, with(kv, 128)));
				all.back()->prefill(prompt);
			}
			save_session(*all[1], file, {});
			return fed_together(all, std::vector<Tokens>(all.size(), next));
		};
		const std::vector<Floats> want = answers(*whole, (folder.path / "whole.kv").string()),
		                          got = answers(*split, (folder.path / "split.kv").string());
		for (size_t i = 0; i < want.size(); ++i)
			check_same_bits({row.device, row.number, fmt::format("sequence {}", i)}, got[i], want[i]);
		check_same_bits({row.device, row.number, "split to whole"},
		                fed(*restore_session(*whole, (folder.path / "split.kv").string()), next), want[1]);
		check_same_bits({row.device, row.number, "whole to split"},
		                fed(*restore_session(*split, (folder.path / "whole.kv").string()), next), want[1]);
	});
}

TEST_CASE("split: a decoded token hands over one row per boundary, and nothing is copied twice") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = tiny(c.name);
		const uint32_t n = layers_of(model);
		const auto engine = open_pair(row, model, std::vector<uint32_t>(n, 1));
		Session s(*engine, with("fp16", 64));
		s.prefill(random_tokens(9, engine->config().vocab, 6));
		(void)s.decode(3);
		const uint64_t before = g_pair.opened->handed_over();
		(void)s.decode(4);
		CHECK(g_pair.opened->handed_over() - before == (n - 1) * engine->config().dim * 4);
	});
}

TEST_CASE("split: a device beside the cpu backend gives transformers' logits") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3moe"}, {"gpt_oss"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "cpu") return; // it would be listed twice
		const NpyArray ids = npy_read(kGolden + "tiny/" + c.name + ".tokens.npy"),
		               logits = npy_read(kGolden + "tiny/" + c.name + ".logits.npy");
		const Tokens tokens(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
		EngineOptions o;
		o.model = tiny(c.name);
		o.backend = select_test_device(row.device);
		const std::string device = o.backend.device;
		for (const std::string& list : {device + ",cpu", "cpu, " + device}) {
			o.backend.device = list;
			const auto engine = Engine::open(o);
			CHECK(engine->backend().n_parts() == 2);
			CHECK(engine->weights_text().starts_with("layers: "));
			Session s(*engine);
			CHECK(relative_error(prompt_logits(s, tokens), logits.as<float>()) <
			      logits_tolerance(engine->backend(), c.name, /*decode=*/false));
		}
	});
}

TEST_CASE("split: quantised weights beside the cpu backend, whose rows lie otherwise, give one device's logits") {
	each_row(std::vector<Case>{{"blocks"}}, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "cpu") return; // it would be listed twice
		EngineOptions o;
		o.model = tiny(c.name);
		o.backend = select_test_device(row.device);
		const auto logits = [&](Engine& e) {
			Session s(e, with("fp16", 64));
			return prompt_logits(s, random_tokens(24, e.config().vocab, 5));
		};
		const auto whole = Engine::open(o);
		const Floats want = logits(*whole);
		for (const char* split : {"1,3", "3,1"}) {
			o.backend.device = select_test_device(row.device).device + ",cpu", o.backend.split = split;
			CHECK(relative_error(logits(*Engine::open(o)), want) < logits_tolerance(whole->backend(), "_q4_k", false));
		}
	});
}

TEST_CASE("split: each device reads its own weights in host memory, to the same bits") {
	each_row(std::vector<Case>{{"llama"}, {"qwen3moe"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = tiny(c.name);
		const auto whole = open_engine(row.device, model, 32);
		const Floats want = long_answer(*whole, "kivi2");
		const ScopedEnv caps("KVRUN_TEST_CAPS", "mapped=1073741824"); // a card with separate memory
		const auto engine =
		    open_pair(row, model, {1, layers_of(model) - 1}, /*last_fails=*/false, WeightOptions{.gpu_layers = 0});
		if (engine->backend().info().mapped_bytes) CHECK(engine->host_weight_bytes() > 0);
		check_same_bits({row.device, row.number, c.name}, long_answer(*engine, "kivi2"), want);
	});
}

TEST_CASE("split: a device that fails is named; a session saved before goes on with the devices that are left") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		const std::string model = tiny(c.name);
		const TempFolder folder;
		const std::string file = (folder.path / "before.kv").string();
		FailingBackend::fails = false;
		const auto engine = open_pair(row, model, {1, layers_of(model) - 1}, /*last_fails=*/true);
		Session s(*engine, with("kivi2", 64));
		s.prefill(random_tokens(40, engine->config().vocab, 6));
		save_session(s, file, {});
		const Floats want = keep(s.decode(3));
		FailingBackend::fails = true;
		CHECK_THROWS_WITH_AS(s.decode(4), doctest::Contains("failing card: the driver reset the device"), Error);
		const auto left = open_engine(row.device, model, 32);
		CHECK(relative_error(restore_session(*left, file)->decode(3), want) < 0.02); // another device's arithmetic
	});
}

TEST_CASE("split: wrong lists and codes shared across devices are refused in one line") {
	each_row(std::vector<Case>{{"llama"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions o;
		o.model = tiny(c.name);
		o.backend = select_test_device(row.device);
		const std::string device = o.backend.device;
		const auto says = [&](const std::string& list, const std::string& split, const char* text) {
			o.backend.device = list, o.backend.split = split;
			CHECK_THROWS_WITH_AS(Engine::open(o), doctest::Contains(text), Error);
		};
		says(device + "," + device, "", "twice");
		says(device + ",", "", "has an empty entry");
		says(device, "1,1", "--split 1,1 needs several devices: --device A,B");
		if (row.device != "cpu") {
			says(device + ",cpu", "1,2,3", "--split has 3 numbers for 2 devices");
			says(device + ",cpu", "1", "--split has 1 number for 2 devices");
			says(device + ",cpu", "1,-2", "expected auto, or a number above 0 for each device");
			says(device + ",cpu", "1,x", "expected auto, or a number above 0 for each device");
			says(device + ",cpu", "1000,1", "leaves device 1 without one of the");
			says(device + ",nowhere", "", "no device is called 'nowhere'");
		}
		CHECK_THROWS_WITH_AS(
		    open_pair(row, tiny("nanbeige"), {1, 3}),
		    doctest::Contains("repeats its layers 2 times; kvrun runs such models on one device, choose one"), Error);
		const uint32_t n = layers_of(o.model);
		const auto engine = open_pair(row, o.model, {1, n - 1});
		CHECK_THROWS_WITH_AS(Session(*engine, with("xquant,km=0,vm=0", 64)),
		                     doctest::Contains("shares the codes of layers 0 and 1, which lie on different devices"),
		                     Error);
	});
}
