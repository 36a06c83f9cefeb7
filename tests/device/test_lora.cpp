// Models with adapters on every device, beside the same models with the adapters merged into their weights.
#include "engine/run/session_file.h"
#include "engine/run/store_as.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/each_device.h"
#include "tests/support/errors.h"
#include "tests/support/lora_builder.h"
#include "tests/support/rig.h"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

std::string write(const fs::path& path, const GgufBuilder& b) {
	const std::vector<std::byte> bytes = b.bytes();
	std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), long(bytes.size()));
	return path.string();
}

std::vector<fs::path> tiny_files() {
	std::vector<fs::path> out;
	for (const auto& entry : fs::directory_iterator(fs::path(test_root()) / "tests" / "golden" / "tiny"))
		if (entry.path().extension() == ".gguf") out.push_back(entry.path());
	std::ranges::sort(out);
	return out;
}

struct Logits {
	std::vector<float> prompt, decode; // (T, vocab) each
};
Logits logits_of(Engine& e, uint32_t n) {
	std::vector<uint32_t> tokens(n);
	for (uint32_t i = 0; i < n; ++i) tokens[i] = (7 * i + 3) % e.config().vocab;
	Logits out;
	Session s(e, {.ctx = 64});
	PrefillHooks hooks;
	hooks.all_logits = [&](uint32_t, uint32_t, std::span<const float> l) {
		out.prompt.insert(out.prompt.end(), l.begin(), l.end());
	};
	s.prefill(tokens, hooks);
	s.reset();
	for (const uint32_t t : tokens) {
		const std::span<const float> l = s.decode(t);
		out.decode.insert(out.decode.end(), l.begin(), l.end());
	}
	return out;
}

EngineOptions options_of(const std::string& device, const std::string& model, std::vector<LoraOption> loras = {}) {
	EngineOptions o;
	o.model = model;
	o.backend = select_test_device(device);
	o.ubatch = 16;
	o.loras = std::move(loras);
	return o;
}

const std::string kModel = (fs::path(test_root()) / "tests" / "golden" / "tiny" / "qwen2.gguf").string();

} // namespace

TEST_CASE("lora: a model of each family with an adapter has the logits of the model with it merged") {
	const std::vector<fs::path> files = tiny_files();
	REQUIRE(files.size() > 60);
	on_every_device([&](const std::string& device) {
		for (size_t number = 0; number < files.size(); ++number) {
			if (!row_wanted(number)) continue;
			const fs::path& path = files[number];
			CAPTURE(path.filename().string());
			const Gguf model = Gguf::open(path.string());
			const auto pairs = random_pairs(model, 5, 11);
			REQUIRE(pairs.size() >= 2);
			const TempFolder folder;
			const std::string adapter = write(folder.path / "adapter.gguf", lora_file(model, pairs, 10));
			const std::string whole = write(folder.path / "merged.gguf", merged(model, {{pairs, 0.5f * 10 / 5}}));
			const auto changed = Engine::open(options_of(device, path.string(), {{adapter, 0.5f}}));
			const auto plain = Engine::open(options_of(device, path.string()));
			const auto other = Engine::open(options_of(device, whole));
			const Logits got = logits_of(*changed, 12), want = logits_of(*other, 12), base = logits_of(*plain, 12);
			const double prompt = relative_difference(got.prompt, want.prompt),
			             decode = relative_difference(got.decode, want.decode);
			CHECK(prompt < logits_tolerance(changed->backend(), path.stem().string(), /*decode=*/false));
			CHECK(decode < logits_tolerance(changed->backend(), path.stem().string(), /*decode=*/true));
			CHECK(relative_difference(base.decode, want.decode) > 5e-2); // the adapter changes much
			CHECK(changed->activation_bytes() > plain->activation_bytes());
		}
	});
}

TEST_CASE("lora: adapters add up, each with its own rank and scale; a scale of 0 changes nothing") {
	on_every_device([&](const std::string& device) {
		const Gguf model = Gguf::open(kModel);
		const auto one = random_pairs(model, 3, 1);
		auto two = random_pairs(model, 40, 2);
		const TempFolder folder;
		const std::string whole = write(folder.path / "merged.gguf", merged(model, {{one, 2}, {two, -0.25f}}));
		const std::string first = write(folder.path / "one.gguf", lora_file(model, one, 3)),
		                  second = write(folder.path / "two.gguf", lora_file(model, two, /*alpha=*/0));
		const auto both = Engine::open(options_of(device, kModel, {{first, 2}, {second, -0.25f}}));
		const auto other = Engine::open(options_of(device, whole));
		const Logits want = logits_of(*other, 12), got = logits_of(*both, 12);
		CHECK(relative_difference(got.decode, want.decode) < logits_tolerance(both->backend(), "qwen2", true));
		CHECK(relative_difference(got.prompt, want.prompt) < logits_tolerance(both->backend(), "qwen2", false));

		const auto none = Engine::open(options_of(device, kModel, {{first, 0}}));
		const auto plain = Engine::open(options_of(device, kModel));
		CHECK(relative_difference(logits_of(*none, 12).decode, logits_of(*plain, 12).decode) < 1e-5);
		CHECK(none->fingerprint(none->lora_scales()) != plain->fingerprint({}));
		CHECK(none->fingerprint(none->lora_scales()) != both->fingerprint(both->lora_scales()));
	});
}

TEST_CASE("lora: the same bits with weights in host memory, in place and through the ring") {
	const std::string looped = (fs::path(test_root()) / "tests" / "golden" / "tiny" / "nanbeige.gguf").string();
	const std::vector<std::string> files = {"synth:llama-3.1-8b,layers=3,dim=256,hidden=512,vocab=1024:q8_0", looped};
	on_every_device([&](const std::string& device) {
		for (const std::string& file : files) {
			CAPTURE(file);
			const Gguf model = Gguf::open(file);
			const TempFolder folder;
			const std::string adapter = write(folder.path / "a.gguf", lora_file(model, random_pairs(model, 8, 3), 16));
			const ScopedEnv caps("KVRUN_TEST_CAPS", "mapped=1073741824,visible=0"); // 1 GiB of host memory
			std::vector<float> first;
			for (const WeightOptions& weights : {WeightOptions{}, WeightOptions{.gpu_layers = 0, .ring = 0},
			                                     WeightOptions{.gpu_layers = 0, .ring = 1}}) {
				EngineOptions o = options_of(device, file, {{adapter, 1}});
				o.ubatch = 64, o.weights = weights;
				const auto e = Engine::open(o);
				if (e->backend().info().mapped_bytes > 0) { // else memory is shared with the host anyway
					CHECK((e->host_weight_bytes() > 0) == weights.asked());
					CHECK((e->ring().bytes() > 0) == (weights.asked() && weights.ring > 0));
				}
				Session s(*e, {.ctx = 512});
				std::vector<uint32_t> tokens(200);
				for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = (7 * i + 3) % e->config().vocab;
				s.prefill(tokens);
				const std::span<const float> l = s.decode(5);
				if (first.empty()) first.assign(l.begin(), l.end());
				CHECK(std::ranges::equal(first, l));
			}
		}
	});
}

TEST_CASE("lora: a session is restored with the same adapters only") {
	on_every_device([&](const std::string& device) {
		const Gguf model = Gguf::open(kModel);
		const TempFolder folder;
		const std::string adapter = write(folder.path / "a.gguf", lora_file(model, random_pairs(model, 4, 3), 4));
		const std::string file = (folder.path / "s.kv").string();
		const auto with = Engine::open(options_of(device, kModel, {{adapter, 1}}));
		Session s(*with, {.ctx = 64});
		s.prefill(std::vector<uint32_t>{1, 2, 3, 4});
		save_session(s, file, {});
		CHECK(restore_session(*with, file)->n_tokens() == 4);
		for (const auto& loras : {std::vector<LoraOption>{}, {{adapter, 0.5f}}, {{adapter, 1}, {adapter, 1}}}) {
			const auto other = Engine::open(options_of(device, kModel, loras));
			CHECK(error_of([&] { restore_session(*other, file); }).find("or of other adapters") != std::string::npos);
		}
	});
}

TEST_CASE("lora: scales that are set later are those of an engine that was opened with them") {
	const std::string experts = (fs::path(test_root()) / "tests" / "golden" / "tiny" / "olmoe.gguf").string();
	const std::string parts = (fs::path(test_root()) / "tests" / "golden" / "tiny" / "qwen35.gguf").string();
	on_every_device([&](const std::string& device) {
		for (const std::string& path : {kModel, experts, parts}) {
			CAPTURE(path);
			const Gguf model = Gguf::open(path);
			const TempFolder folder;
			const std::string one = write(folder.path / "one.gguf", lora_file(model, random_pairs(model, 3, 1), 3)),
			                  two = write(folder.path / "two.gguf", lora_file(model, random_pairs(model, 7, 2), 0));
			const auto e = Engine::open(options_of(device, path, {{one, 1}, {two, 0}}));
			const auto other = Engine::open(options_of(device, path, {{one, 0.25f}, {two, -0.5f}}));
			const Logits before = logits_of(*e, 12), want = logits_of(*other, 12);
			const std::vector<float> scales = {0.25f, -0.5f}, former = e->lora_scales();
			const uint64_t id = e->fingerprint(former);
			Session s(*e, {.ctx = 64}), empty(*e, {.ctx = 64});
			s.prefill(std::vector<uint32_t>{1, 2, 3});
			const auto fork = s.fork();

			e->set_lora_scales(scales);
			CHECK(e->lora_scales() == scales);
			CHECK(e->fingerprint(e->lora_scales()) == other->fingerprint(scales));
			CHECK(e->fingerprint(s.lora_scales()) == id);
			const Logits got = logits_of(*e, 12);
			CHECK(got.prompt == want.prompt);
			CHECK(got.decode == want.decode);
			for (Session* old : {&s, fork.get()}) {
				CHECK(error_of([&] { old->decode(4); }).find("other scales") != std::string::npos);
				CHECK(error_of([&] {
					      old->prefill(std::vector<uint32_t>{4, 5});
				      }).find("other scales") != std::string::npos);
			}
			empty.prefill(std::vector<uint32_t>{1, 2, 3});
			const std::string file = (folder.path / "s.kv").string();
			save_session(s, file, {}); // with the scales that its tokens were read with
			CHECK(error_of([&] { restore_session(*e, file); }).find("or of other adapters") != std::string::npos);

			e->set_lora_scales(former);
			CHECK(logits_of(*e, 12).decode == before.decode);
			CHECK(restore_session(*e, file)->n_tokens() == 3);
			s.decode(4), fork->decode(4);
			CHECK(error_of([&] { empty.decode(4); }).find("other scales") != std::string::npos);
			empty.reset();
			empty.decode(4);
			Session noise(*e, {.ctx = 64}), packed(*e, {.kv = parse_policy("rtn8"), .ctx = 64});
			fill_with_noise(noise, 8);
			noise.decode(4);
			if (can_store_as(packed) && !packed.states()) {
				store_as(packed, s);
				packed.decode(4);
			}
			Prefill half(empty, std::vector<uint32_t>(40, 7));
			half.step(0);
			e->set_lora_scales(scales);
			CHECK(error_of([&] { half.step(0); }).find("other scales") != std::string::npos);
			for (const std::vector<float>& wrong : {std::vector<float>{1}, {1, NAN}, {1, 2, 3}})
				CHECK(error_of([&] { e->set_lora_scales(wrong); }) != "");
			CHECK(e->lora_scales() == scales);
		}
	});
}
