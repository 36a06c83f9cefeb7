// Config: RoPE scaling, and queries scaled by position.
#include "tests/support/assets.h"
#include "tests/support/config_of.h"
#include <algorithm>
#include <cmath>

using namespace kvrun;

namespace {

GgufBuilder rope_model(const char* arch, uint32_t head_dim, uint32_t ctx) {
	TinyShape s;
	s.arch = arch;
	s.head_dim = head_dim;
	s.ctx = ctx;
	return tiny_model(s);
}
bool close(float a, double b) { return std::abs(a - b) <= 2e-7 * std::abs(b); }

} // namespace

TEST_CASE("rope: frequencies without scaling") {
	const Config c = config_of(rope_model("llama", 8, 64));
	const std::vector<float> f = rope_inv_freq(c.ropes[0], 64);
	REQUIRE(f.size() == 4);
	for (int i = 0; i < 4; ++i) CHECK(close(f[size_t(i)], std::pow(10., -i))); // 10000^(-2i/8)
	CHECK(rope_attention_scale(c.ropes[0]) == 1);
	CHECK(rope_inv_freq(c.ropes[0], 1000000) == f);
}

TEST_CASE("rope: linear scaling, also as older files write it") {
	for (bool old : {false, true}) {
		GgufBuilder b = rope_model("llama", 8, 64);
		if (old)
			b.f32("llama.rope.scale_linear", 4);
		else
			b.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
		const std::vector<float> f = rope_inv_freq(config_of(b).ropes[0], 64);
		for (int i = 0; i < 4; ++i) CHECK(close(f[size_t(i)], std::pow(10., -i) / 4));
	}
	GgufBuilder b = rope_model("llama", 8, 64);
	b.text("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4);
	CHECK(close(rope_inv_freq(config_of(b).ropes[0], 64)[0], 1));
	b.text("llama.rope.scaling.type", "dynamic");
	has(refusal(b), "llama.rope.scaling.type is dynamic; kvrun knows none linear llama3 yarn longrope");
	for (float bad : {-1.f, NAN, INFINITY}) {
		b.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", bad);
		CHECK(refusal(b) != "");
	}
}

TEST_CASE("rope: llama3 scaling by metadata and by tensor give the same frequencies") {
	const uint32_t n = 32; // pairs; Llama 3.1: theta 500000, factor 8, original context 8192
	GgufBuilder b = rope_model("llama", 2 * n, 131072);
	b.f32("llama.rope.freq_base", 500000);
	std::vector<float> want(n), factors(n);
	for (uint32_t i = 0; i < n; ++i) { // as in the definition, by wavelength
		const double freq = 1 / std::pow(500000., 2. * i / (2 * n)), wave = 2 * M_PI / freq, low = 8192 / 1.,
		             high = 8192 / 4.;
		double scaled = freq;
		if (wave > low)
			scaled = freq / 8;
		else if (wave >= high) {
			const double smooth = (8192 / wave - 1) / (4. - 1);
			scaled = (1 - smooth) * freq / 8 + smooth * freq;
		}
		want[i] = float(scaled);
		factors[i] = float(freq / scaled);
	}
	CHECK(factors[0] == 1);
	CHECK(factors[n - 1] == 8);
	CHECK(std::count_if(factors.begin(), factors.end(), [](float f) { return f > 1 && f < 8; }) > 2);
	GgufBuilder by_key = b, by_tensor = b;
	by_key.text("llama.rope.scaling.type", "llama3")
	    .f32("llama.rope.scaling.factor", 8)
	    .u32("llama.rope.scaling.original_context_length", 8192);
	by_key.f32("llama.rope.scaling.low_freq_factor", 1).f32("llama.rope.scaling.high_freq_factor", 4);
	by_tensor.tensor_f32("rope_freqs.weight", {n}, factors);
	GgufBuilder both = by_key;
	both.tensor_f32("rope_freqs.weight", {n}, factors);
	for (const GgufBuilder& m : {by_key, by_tensor, both}) {
		const Config c = config_of(m);
		const std::vector<float> f = rope_inv_freq(c.ropes[0], 131072);
		for (uint32_t i = 0; i < n; ++i) CHECK(close(f[i], want[i]));
		CHECK(rope_attention_scale(c.ropes[0]) == 1);
	}
	by_key.f32("llama.rope.scaling.high_freq_factor", 1);
	has(refusal(by_key), "high_freq_factor 1 is not above low_freq_factor 1");
	by_tensor.tensor_f32("rope_freqs.weight", {n - 1}, std::vector<float>(n - 1, 1));
	has(refusal(by_tensor), "rope_freqs.weight has 1 x 31 elements, the config says 32");
	for (float bad : {0.f, -1.f, NAN, INFINITY}) {
		factors[3] = bad;
		by_tensor.tensor_f32("rope_freqs.weight", {n}, factors);
		has(refusal(by_tensor), "rope_freqs.weight: element 3 is");
	}
}

TEST_CASE("rope: yarn stretches slow pairs, keeps fast ones and scales attention") {
	GgufBuilder b = rope_model("qwen2", 128, 131072);
	b.f32("qwen2.rope.freq_base", 1000000).text("qwen2.rope.scaling.type", "yarn").f32("qwen2.rope.scaling.factor", 4);
	b.u32("qwen2.rope.scaling.original_context_length", 32768);
	const Config c = config_of(b);
	const std::vector<float> f = rope_inv_freq(c.ropes[0], 131072);
	// pairs that turn 32 times and once in 32768 positions: 64 ln(32768 / (2 pi n)) / ln(1e6) = 23.6 and 39.7
	for (uint32_t i = 0; i < 64; ++i) {
		const double freq = std::pow(1e6, -2. * i / 128);
		const double stretched = i <= 23 ? 0 : i >= 40 ? 1 : (i - 23) / 17.;
		CHECK(close(f[i], freq * (1 - stretched) + freq / 4 * stretched));
	}
	CHECK(close(rope_attention_scale(c.ropes[0]), 0.1 * std::log(4.) + 1));
	for (const char* key : {"attn_factor", "yarn_attn_factor"}) { // the whole factor, under either key
		GgufBuilder whole = b;
		whole.f32(fmt::format("qwen2.rope.scaling.{}", key), 1.1386294f);
		CHECK(rope_attention_scale(config_of(whole).ropes[0]) == rope_attention_scale(c.ropes[0]));
		whole.f32(fmt::format("qwen2.rope.scaling.{}", key), 0.5f); // another one
		CHECK(close(rope_attention_scale(config_of(whole).ropes[0]), 0.5 * (0.1 * std::log(4.) + 1)));
	}
	b.f32("qwen2.rope.scaling.yarn_log_multiplier", 0.5f); // reduces it again in part
	const double part = (1 + 0.1 * std::log(4.)) / (1 + 0.05 * std::log(4.));
	CHECK(double(rope_attention_scale(config_of(b).ropes[0])) == doctest::Approx(part).epsilon(1e-6));
	b.f32("qwen2.rope.scaling.yarn_log_multiplier", -1);
	has(refusal(b), "yarn_log_multiplier is -1, expected more than 0");
}

TEST_CASE("config: queries that positions scale, in the family that has them") {
	TinyShape s;
	s.arch = "mistral3";
	GgufBuilder b = tiny_model(s);
	CHECK(config_of(b).temperature.scale == 0);
	b.f32("mistral3.attention.temperature_scale", 0.1f).u32("mistral3.rope.scaling.original_context_length", 32);
	CHECK(config_of(b).temperature.scale == 0.1f);
	CHECK(config_of(b).temperature.length == 32);
	b.u32("mistral3.rope.scaling.original_context_length", 0);
	has(refusal(b), "key mistral3.rope.scaling.original_context_length is 0");
	b.u32("mistral3.rope.scaling.original_context_length", 32).f32("mistral3.attention.temperature_scale", -1);
	has(refusal(b), "key mistral3.attention.temperature_scale is -1, expected more than 0");
	const Config c = open_model("synth:llama-4-scout,layers=4:q4_k").config; // as llama.cpp has it: no keys in the file
	CHECK((c.temperature.scale == 0.1f && c.temperature.length == 8192 && c.temperature.offset == 1));
	CHECK(c.temperature.unrotated);
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK(c.layers[l].window == (l < 3 ? Window{8192, true} : Window{}));
		CHECK(c.ropes[c.layers[l].rope].rotates == (l < 3));
		CHECK(c.layers[l].qk_norm == (l < 3 ? QkNorm::HeadUnit : QkNorm::None));
	}
	b = tiny_model();
	b.f32("llama.attention.temperature_scale", 0.1f);
	has(refusal(b), "key llama.attention.temperature_scale is 0.1; kvrun runs llama without it");
}

TEST_CASE("rope: longrope has one list of factors for short contexts and one for long") {
	GgufBuilder b = rope_model("phi3", 8, 131072);
	b.u32("phi3.rope.scaling.original_context_length", 4096).tensor_f32("rope_factors_short.weight", {4}, {1, 1, 2, 4});
	has(refusal([&] {
		    GgufBuilder half = b;
		    half.erase_tensor("rope_factors_short.weight").tensor_f32("rope_factors_long.weight", {4}, {1, 2, 3, 4});
		    return half;
	    }()),
	    "longrope needs tensors");
	b.tensor_f32("rope_factors_long.weight", {4}, {2, 4, 8, 16});
	Config c = config_of(b);
	CHECK(c.ropes[0].scaling == RopeScaling::LongRope);
	const float short_factors[] = {1, 1, 2, 4}, long_factors[] = {2, 4, 8, 16};
	for (uint32_t i = 0; i < 4; ++i) {
		CHECK(close(rope_inv_freq(c.ropes[0], 4096)[i], std::pow(10., -double(i)) / short_factors[i]));
		CHECK(close(rope_inv_freq(c.ropes[0], 4097)[i], std::pow(10., -double(i)) / long_factors[i]));
	}
	CHECK(close(rope_attention_scale(c.ropes[0]), std::sqrt(1 + std::log(32.) / std::log(4096.))));
	b.f32("phi3.rope.scaling.attn_factor", 1.25f);
	CHECK(rope_attention_scale(config_of(b).ropes[0]) == 1.25f);
	b.text("phi3.rope.scaling.type", "longrope").erase_tensor("rope_factors_long.weight");
	has(refusal(b), "longrope needs tensors rope_factors_long.weight and rope_factors_short.weight");
}

TEST_CASE("rope: axes of positions, in the order of the family") {
	const auto with = [](const char* arch, std::vector<int32_t> axes) {
		const std::string text = std::string(arch).substr(0, 5) + ".gguf";
		GgufBuilder b = GgufBuilder::copy_as(Gguf::open(test_root() + "/tests/golden/tiny/" + text), arch);
		if (!axes.empty()) b.numbers(std::string(arch) + ".rope.dimension_sections", GgufType::I32, axes);
		return b;
	};
	const RopeAxes a = config_of(with("qwen2vl", {2, 1, 1, 0})).ropes[0].axes;
	CHECK((a.time == 2 && a.line == 1 && a.column == 1 && !a.interleaved));
	CHECK(config_of(with("qwen3vl", {2, 1, 1, 0})).ropes[0].axes.interleaved);
	CHECK(!config_of(with("qwen2vl", {})).ropes[0].axes);
	CHECK(config_of(with("qwen2vl", {2, 1, 1})).ropes[0].axes);
	for (const int32_t bad : {-1, 5, INT32_MAX})
		has(refusal(with("qwen2vl", {2, bad, 1, 0})), "rope.dimension_sections has " + std::to_string(bad) + " pairs");
	has(refusal(with("qwen2vl", {1, 1, 1, 1, 1})), "rope.dimension_sections");
}

TEST_CASE("rope: hunyuan_vl numbers images on a fourth axis, and has a factor of the base") {
	const GgufBuilder good =
	    GgufBuilder::copy_as(Gguf::open(test_root() + "/tests/golden/tiny/hunyuan_vl.gguf"), "hunyuan_vl");
	const auto with = [&](std::vector<int32_t> axes) {
		GgufBuilder b = good;
		b.numbers("hunyuan_vl.rope.dimension_sections", GgufType::I32, axes);
		return b;
	};
	const Rope r = config_of(good).ropes[0];
	CHECK((r.axes.time == 2 && r.axes.column == 1 && r.axes.line == 2 && r.axes.image == 3 && r.axes.numbered));
	CHECK(close(r.theta, 1.25 * std::pow(2., 16. / 14)));
	CHECK(config_of(with({4, 2, 2, 0})).ropes[0].axes.image == 0);
	for (const std::vector<int32_t>& bad : {std::vector{2, 1, 2}, {2, 1, 2, 2}, {8, 8, 8, 8}})
		has(refusal(with(bad)), "pairs of channels on four axes; kvrun runs hunyuan_vl with all 8");
	GgufBuilder b = good;
	b.erase("hunyuan_vl.rope.dimension_sections");
	CHECK(!config_of(b).ropes[0].axes);
	b.erase("hunyuan_vl.rope.scaling.alpha");
	CHECK(config_of(b).ropes[0].theta == 1.25f);
	for (const float bad : {0.f, -1.f, NAN, INFINITY, 1e38f})
		has(refusal(b.f32("hunyuan_vl.rope.scaling.alpha", bad)), "hunyuan_vl.rope.scaling.alpha");
}
