// Latent attention in files: keys and tensors, their errors, and the memory that a token takes.
#include "engine/kv_host/plan.h"
#include "engine/run/cache_layers.h"
#include "models/synth/shape.h"
#include "tests/host/file_edits.h"
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
