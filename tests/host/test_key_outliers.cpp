// Models whose keys have outlier channels: policies that would rotate keys store them per channel.
#include "engine/run/key_outliers.h"
#include "engine/run/tuning_file.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>
#include <fstream>

using namespace kvrun;

static Gguf model_with(const TempFolder& folder, std::vector<float> bias) {
	const std::filesystem::path path = folder.path / "model.gguf";
	GgufBuilder b;
	b.text("general.architecture", "qwen2");
	b.tensor_f32("blk.0.attn_k.bias", {4}, {0.5f, -1, 2, 0}).tensor_f32("blk.1.attn_k.bias", {4}, std::move(bias));
	b.tensor_f32("blk.1.attn_q.bias", {4}, {900, 900, 900, 900}); // of queries: not looked at
	const std::vector<std::byte> file = b.bytes();
	std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(file.data()), long(file.size()));
	return Gguf::open(path.string());
}

TEST_CASE("key_outliers: keys with large biases are stored per channel, unless the policy says how") {
	const TempFolder folder;
	const Gguf small = model_with(folder, {1, 2, -15.9f, 0});
	CHECK(largest_key_bias(small) == 15.9f);
	CHECK(suit_to_keys(parse_policy("turbo2"), small).policy.text == "turbo2");

	const TempFolder other;
	const Gguf large = model_with(other, {1, 2, -211, 0});
	CHECK(largest_key_bias(large) == 211);
	const auto suited = [&](const char* text) { return suit_to_keys(parse_policy(text), large); };
	for (const char* text : {"turbo2", "turbo4", "turbo3/2", "turbo2/1,sinks=0", "turbo4,sinks=8", "turbo"}) {
		CAPTURE(text);
		const Choice c = suited(text);
		CHECK(c.policy.text == std::string(text) + ",k.scale=channel");
		CHECK(c.policy.regular.k.scale == Scale::PerChannel);
		CHECK(c.policy.regular.v == parse_policy(text).regular.v);
		CHECK(c.policy.select == parse_policy(text).select);
		CHECK(c.why.find("biases of up to 211") != c.why.npos);
	}
	for (const char* text : {"fp16", "kivi2", "mixed", "zipcache", "turbo8", "turbo4,k.scale=codebook",
	                         "turbo4,k.scale=channel", "turbo2,k.scale@0-3=channel"}) {
		CAPTURE(text);
		const Choice c = suited(text);
		CHECK(c.policy.text == text);
		CHECK(c.why.empty());
	}
}

static Gguf model_with_norms(const TempFolder& folder, const std::vector<float>& first,
                             const std::vector<float>& last) {
	const std::filesystem::path path = folder.path / "model.gguf";
	GgufBuilder b;
	b.text("general.architecture", "gemma3");
	b.tensor_f32("blk.0.attn_k_norm.weight", {4}, first).tensor_f32("blk.1.attn_k_norm.weight", {4}, last);
	b.tensor_f32("blk.1.attn_q_norm.weight", {4}, {9, 0, 0, 0}); // of queries: not looked at
	const std::vector<std::byte> file = b.bytes();
	std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(file.data()), long(file.size()));
	return Gguf::open(path.string());
}

TEST_CASE("key_outliers: keys with uneven norms are stored per channel") {
	const auto suited = [](const std::vector<float>& first, const std::vector<float>& last, float peak) {
		const TempFolder folder;
		const Gguf g = model_with_norms(folder, first, last);
		CHECK(peak_of_key_norms(g) == doctest::Approx(peak));
		CHECK(largest_key_bias(g) == 0);
		return suit_to_keys(parse_policy("turbo2"), g);
	};
	CHECK(suited({1, 1, 1, 1}, {2, 2, -2, 2}, 1).policy.text == "turbo2");
	CHECK(suited({1, 1, 1, 1}, {3, 1, 1, 1}, 3 / std::sqrt(3.f)).policy.text == "turbo2");
	CHECK(suited({0, 0, 0, 0}, {0, 0, 0, 0}, 0).policy.text == "turbo2");
	CHECK(suited({1, 1, 1, 1}, {NAN, 1, 1, 1}, 1).policy.text == "turbo2");
	const Choice c = suited({0, 0, -7, 0}, {1, 1, 1, 1}, 2);
	CHECK(c.policy.text == "turbo2,k.scale=channel");
	CHECK(c.why.find("weights of up to 2.0 times") != c.why.npos);
}

TEST_CASE("key_outliers: sessions, plans and auto ask for the policy that suits the model") {
	const TempFolder folder;
	const Gguf large = model_with(folder, {1, 2, -211, 0});
	const KvShape shape{.n_layers = 2, .n_kv_heads = 2, .head_dim = 64};
	CHECK(choose_policy(parse_policy("turbo4"), shape, large, 1000, 0).policy.text == "turbo4,k.scale=channel");
	CHECK(choose_policy(parse_policy("kivi4"), shape, large, 1000, 0).policy.text == "kivi4");
	const Choice guess = choose_policy(parse_policy("tuned:2.5"), shape, large, 1000, 0);
	CHECK(guess.policy.name == "turbo");
	CHECK(guess.policy.regular.k.scale == Scale::PerChannel);
	CHECK(guess.why.find("not measured on this model") != guess.why.npos);
	CHECK(guess.why.find("biases of up to 211") != guess.why.npos);
}
