// Latent attention in files: keys and tensors, their errors, and the memory that a token takes.
#include "engine/core/block_quant.h"
#include "engine/kv_host/plan.h"
#include "engine/run/cache_layers.h"
#include "models/synth/shape.h"
#include "tests/host/file_edits.h"
#include "tests/support/gguf_builder.h"
#include <cmath>

using namespace kvrun;

TEST_CASE("latent files: what the converter's files say") {
	const Config lite = config_of(golden("deepseek2_lite")), v3 = config_of(golden("deepseek2_v3")),
	             glm = config_of(golden("deepseek2_glm")), wide = config_of(golden("deepseek2_wide"));
	CHECK(lite.layers[0].latent == Latent{32, 8, 16, 24, 0});
	CHECK(v3.layers[1].latent == Latent{32, 8, 16, 24, 40});
	CHECK(wide.layers[0].latent == Latent{512, 64, 32, 16, 0});
	for (const Config* c : {&lite, &v3, &glm}) {
		CHECK(c->layers[0].experts.n == 0);
		CHECK(c->layers[1].experts.n == 8);
		CHECK(c->layers[1].n_kv_heads == 1);
		CHECK(c->layers[1].head_dim == 32);
	}
	CHECK(lite.layers[1].experts.gating == Gating::Softmax);
	CHECK(v3.layers[1].experts.gating == Gating::Sigmoid);
	CHECK(glm.layers[1].experts.gating == Gating::Sigmoid); // whose file does not say it
	CHECK(v3.layers[1].experts.n_groups == 4);
	// YaRN's factor is in the scores, and nowhere else.
	const float m = 1 + 0.1f * std::log(4.f);
	CHECK(v3.layers[0].attention_scale == doctest::Approx(m * m / std::sqrt(24.f)));
	CHECK(rope_attention_scale(v3.ropes[0]) == doctest::Approx(1));
	CHECK(glm.layers[0].attention_scale == doctest::Approx(1 / std::sqrt(24.f)));
}

TEST_CASE("latent files: what cannot be is refused in one line") {
	const Bytes file = golden("deepseek2_v3");
	const std::string key = "deepseek2.attention.";
	CHECK(refusal(renamed(file, "attention.key_length_mla", "attention.key_length_mlb"))
	          .find("convert the model again") != std::string::npos);
	CHECK(refusal(with_u32(file, key + "kv_lora_rank", 24)).find("keys have 24 channels per head, values 32") !=
	      std::string::npos);
	CHECK(refusal(with_u32(file, key + "kv_lora_rank", 1024)).find("multiples of 8 up to 512") != std::string::npos);
	CHECK(refusal(with_u32(file, key + "key_length_mla", 8)).find("of which RoPE takes 8") != std::string::npos);
	CHECK(refusal(with_u32(file, key + "value_length_mla", 16)).find("attn_v_b.weight is") != std::string::npos);
	CHECK(refusal(with_u32(file, key + "q_lora_rank", 48)).find("attn_q_a.weight is") != std::string::npos);
	CHECK(refusal(renamed(file, "blk.0.attn_k_b.weight", "blk.0.attn_k_c.weight")).find("attn_k_b.weight is missing") !=
	      std::string::npos);
}

TEST_CASE("latent files: attn_kv_b is read as attn_k_b, transposed and in f16, and attn_v_b") {
	constexpr uint32_t kHeads = 3, kKeys = 16, kValues = 24, kRank = 64, kRows = kHeads * (kKeys + kValues);
	for (const DType type : {DType::Q8_0, DType::F32, DType::BF16, DType::F16}) {
		CAPTURE(dtype_info(type).name);
		const size_t row_bytes = dtype_row_bytes(type, kRank);
		std::string data;
		std::mt19937 rng(4);
		for (uint32_t r = 0; r < kRows; ++r)
			for (size_t i = 0; i < row_bytes; ++i) {
				const bool scale = type == DType::Q8_0 && i % 34 < 2; // 2^-6 in f16
				const bool top = type != DType::Q8_0 && i % dtype_info(type).bytes == dtype_info(type).bytes - 1;
				data += scale ? char(i % 34 ? 0x24 : 0) : top ? char(0x3c) : char(rng() % 128);
			}
		GgufBuilder b;
		b.text("general.architecture", "deepseek2").u32("deepseek2.attention.head_count", kHeads);
		b.u32("deepseek2.attention.kv_lora_rank", kRank).u32("deepseek2.rope.dimension_count", 8);
		b.u32("deepseek2.attention.key_length", kKeys + 8).u32("deepseek2.attention.value_length", kValues);
		b.tensor("blk.7.attn_kv_b.weight", type, {kRank, kRows}, data);
		const Bytes file = b.bytes();
		const Gguf g = Gguf::parse("test.gguf", file);
		CHECK(g.splits_latents());
		CHECK(g.find_tensor("blk.7.attn_kv_b.weight") == nullptr);
		const GgufTensor *k = g.find_tensor("blk.7.attn_k_b.weight"), *v = g.find_tensor("blk.7.attn_v_b.weight");
		REQUIRE((k && v));
		CHECK(k->type == (type == DType::Q8_0 ? DType::F16 : type));
		CHECK(v->type == type);
		CHECK((k->shape[0] == kKeys && k->shape[1] == kRank && k->shape[2] == kHeads));
		CHECK((v->shape[0] == kRank && v->shape[1] == kValues && v->shape[2] == kHeads));
		std::vector<float> whole(kRows * kRank), keys(kHeads * kRank * kKeys), values(kHeads * kValues * kRank);
		dequantise_row(type, reinterpret_cast<const std::byte*>(data.data()), whole.data(), whole.size());
		const auto read = [&](const GgufTensor& t, std::vector<float>& out) {
			std::vector<std::byte> bytes(t.bytes), parts(t.bytes);
			g.read(t, 0, bytes);
			const size_t block = dtype_info(t.type).bytes;
			for (size_t at = 0, n = block; at < bytes.size(); at += n, n = block * (1 + at / block * 7 % 300)) {
				n = std::min(n, bytes.size() - at);
				g.read(t, at, std::span(parts).subspan(at, n));
			}
			CHECK(parts == bytes);
			dequantise_row(t.type, bytes.data(), out.data(), out.size());
		};
		read(*k, keys), read(*v, values);
		uint32_t wrong = 0;
		for (uint32_t h = 0; h < kHeads; ++h)
			for (uint32_t r = 0; r < kRank; ++r) {
				const float* head = whole.data() + size_t(h) * (kKeys + kValues) * kRank;
				for (uint32_t i = 0; i < kKeys; ++i) wrong += keys[(h * kRank + r) * kKeys + i] != head[i * kRank + r];
				for (uint32_t i = 0; i < kValues; ++i)
					wrong += values[(h * kValues + i) * kRank + r] != head[(kKeys + i) * kRank + r];
			}
		CHECK(wrong == 0);
	}
	// sizes that do not fit leave the tensor as it is
	GgufBuilder b;
	b.text("general.architecture", "deepseek2").u32("deepseek2.attention.head_count", kHeads);
	b.u32("deepseek2.attention.kv_lora_rank", kRank).u32("deepseek2.rope.dimension_count", 8);
	b.u32("deepseek2.attention.key_length", kKeys + 8).u32("deepseek2.attention.value_length", kValues);
	b.tensor_f32("blk.7.attn_kv_b.weight", {kRank, kRows + 1}, std::vector<float>(kRank * (kRows + 1)));
	const Bytes file = b.bytes();
	CHECK_FALSE(Gguf::parse("test.gguf", file).splits_latents());
}

TEST_CASE("latent files: a token of DeepSeek R1 takes 576 halves per layer, in f16 and of less in every policy") {
	const Config c = parse_synth("deepseek-r1:q4_k").config;
	const KvShape shape = CacheLayers(c).main_shape();
	CHECK(shape.n_layers == 61);
	CHECK(kv_f16_bytes(c) == 61 * 576 * 2);
	CHECK(make_plan(parse_policy("fp16"), shape).f16_bytes(1) == 61 * 576 * 2);
	const auto bits = [&](const char* policy) { return stored_bits(make_plan(parse_policy(policy), shape), 1 << 20); };
	CHECK(bits("fp16") == doctest::Approx(16).epsilon(0.01));
	// Latents of 3 bits with a norm, means of a page; keys of 8 bits with scale and zero point.
	CHECK(bits("turbo3") == doctest::Approx((512 * 3 + 8 + 512 * 16 / 128. + 64 * 8 + 32) / 576).epsilon(0.01));
	CHECK(bits("turbo3,rope.bits=4") < bits("turbo3") - 0.4);
	CHECK(bits("kivi4") < 6);
}
