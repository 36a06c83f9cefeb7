// Recurrent layers in files: keys and tensors, and their errors.
#include "engine/kv_host/counts.h"
#include "engine/run/memory_plan.h"
#include "models/prediction.h"
#include "models/recurrent.h"
#include "models/synth/shape.h"
#include "tests/host/file_edits.h"

using namespace kvrun;

TEST_CASE("recurrent layers: what the converter's files say") {
	const Config next = config_of(golden("qwen3next")), dense = config_of(golden("qwen35")),
	             moe = config_of(golden("qwen35moe"));
	for (const Config* c : {&next, &dense, &moe}) {
		for (uint32_t l = 0; l < 4; ++l) {
			CHECK((c->layers[l].recurrent.n_heads != 0) == (l != 3));
			CHECK(c->layers[l].output_gate == (l == 3));
		}
		CHECK(c->ropes[0].dim == 8);
	}
	CHECK(next.layers[0].recurrent == Recurrent{4, 2, 8, 8, 4, false, true});
	CHECK(dense.layers[0].recurrent == Recurrent{4, 2, 16, 16, 4, true, false});
	CHECK(moe.layers[0].recurrent == Recurrent{4, 2, 8, 8, 3, true, false});
	CHECK(moe.layers[0].experts.n == 6);
	CHECK(moe.layers[0].experts.normalise);
	// without the list of layers every fourth attends, or as the period says
	const Bytes listless =
	    renamed(golden("qwen35"), "qwen35.attention.recurrent_layers", "qwen35.attention.recurrent_xxxxxx");
	CHECK(config_of(listless).layers[3].recurrent.n_heads == 0);
	CHECK(config_of(listless).layers[2].recurrent.n_heads == 4);
	CHECK(refusal(with_u32(listless, "qwen35.full_attention_interval", 5)).find("all 4 layers are recurrent") !=
	      std::string::npos);
}

TEST_CASE("recurrent layers: a model of states alone has a cache without layers") {
	const Config c = config_of(golden("mamba2"));
	CHECK(c.n_layers == 3);
	for (const Layer& l : c.layers) {
		CHECK(l.recurrent.n_heads == 8);
		CHECK(l.mlp == MlpKind::None);
		CHECK(!attends(l));
	}
	CHECK(kv_f16_bytes(c) == 0);
	const CacheLayers layers(c);
	CHECK(layers.main_shape().n_layers == 0);
	CHECK(layers.states().n_layers() == 3);
	CHECK(layers.states().first == 0);
	for (const char* policy : {"fp16", "kivi2", "zipcache", "h2o,budget=64", "turbo3/2"}) {
		CAPTURE(policy);
		const KvPlan plan = make_device_plan(parse_policy(policy), layers.main_shape());
		CHECK(bytes_at(plan, 100000).total() == 0);
		CHECK(tokens_that_fit(plan, 1, 5000) == 5000);
	}
	CHECK(refusal(with_u32(golden("mamba2"), "mamba2.ssm.state_size", 0)).find("key mamba2.ssm.state_size is 0") !=
	      std::string::npos);
	CHECK(refusal(with_u32(golden("mamba2"), "mamba2.context_length", 0)).find("key mamba2.context_length is 0") !=
	      std::string::npos);
}

TEST_CASE("recurrent layers: selective scans, with attention and experts or alone") {
	const Config jamba = config_of(golden("jamba")), dense = config_of(golden("jamba_dense"));
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK(attends(jamba.layers[l]) == (l == 1));
		CHECK((jamba.layers[l].experts.n == 6) == (l % 2 == 1)); // only the tensors say it
		if (l == 1) continue;
		const Recurrent& r = jamba.layers[l].recurrent;
		CHECK((r.n_heads == 1 && r.v_dim == 64 && r.k_dim == 16 && r.rank == 8 && r.step_norm == StepNorm::Weighted));
		CHECK((r.channels() == 64 && r.decays() == 64 && r.conv_words() == 3 * 64 && r.rule_words() == 16 * 64));
	}
	CHECK(!jamba.ropes[0].rotates);
	CHECK(dense.layers[1].experts.n == 0);
	CHECK(config_of(golden("mamba")).layers[0].recurrent.step_norm == StepNorm::None);
	CHECK(config_of(golden("falcon_mamba")).layers[0].recurrent.step_norm == StepNorm::Unit);
	const auto has = [](const std::string& text, const char* part) {
		CAPTURE(text);
		CHECK(text.find(part) != std::string::npos);
	};
	has(refusal(with_u32(golden("jamba"), "jamba.ssm.state_size", 40)),
	    "jamba.ssm.state_size is 40; kvrun runs 4 to 32");
	has(refusal(with_u32(golden("jamba"), "jamba.ssm.state_size", 18)), "state_size is 18; kvrun runs multiples of 4");
	has(refusal(with_u32(golden("jamba"), "jamba.ssm.time_step_rank", 0)), "key jamba.ssm.time_step_rank is 0");
	has(refusal(with_u32(golden("mamba"), "mamba.ssm.inner_size", 72)), "tensor blk.0.ssm_in.weight is");
}

TEST_CASE("T13: a prediction layer that is damaged is refused, by name") {
	const Bytes good = golden("../prediction/qwen35");
	const auto said = [&](const Bytes& b) {
		const Gguf g = Gguf::parse("file", b);
		const Config c = read_config(g);
		return error_of([&] { read_prediction(g, c); });
	};
	CHECK(said(good) == "");
	for (const char* what : {"enorm", "hnorm", "eh_proj"}) {
		const std::string name = std::string("blk.4.nextn.") + what + ".weight";
		std::string other = name;
		other[other.size() - 9] = 'x';
		CHECK(said(renamed(good, name, other)).find("tensor " + name + " is missing") != std::string::npos);
	}
	CHECK(said(with_u32(good, "qwen35.nextn_predict_layers", 0)).find("key qwen35.nextn_predict_layers is 0") !=
	      std::string::npos);
}

TEST_CASE("T13: sizes and tensors of recurrent layers that are wrong are refused") {
	struct Bad {
		const char* key;
		uint32_t value;
		const char* said;
	};
	const Bytes good = golden("qwen35");
	CHECK(refusal(good) == "");
	for (const Bad& bad :
	     {Bad{"ssm.conv_kernel", 1, "key qwen35.ssm.conv_kernel is 1; kvrun runs 2 to 16"},
	      {"ssm.conv_kernel", 3, "tensor blk.0.ssm_conv1d.weight is (128, 4), the config says (128, 3)"},
	      {"ssm.state_size", 0, "key qwen35.ssm.state_size is 0; kvrun runs 8 to 256"},
	      {"ssm.state_size", 12, "key qwen35.ssm.state_size is 12; kvrun runs multiples of 8"},
	      {"ssm.state_size", 24, "tensor blk.0.attn_qkv.weight is (128, 32), the config says (160, 32)"},
	      {"ssm.group_count", 3, "4 heads of recurrent layers share 3 key heads"},
	      {"ssm.group_count", 0, "key qwen35.ssm.group_count is 0"},
	      {"ssm.time_step_rank", 8, "tensor blk.0.ssm_beta.weight is (4, 32), the config says (8, 32)"},
	      {"ssm.time_step_rank", UINT32_MAX, "key qwen35.ssm.time_step_rank is 4294967295"},
	      {"ssm.inner_size", 66, "4 heads of recurrent layers share 2 key heads and 66 channels"},
	      {"ssm.inner_size", 0, "key qwen35.ssm.inner_size is 0"}}) {
		CAPTURE(bad.key);
		CAPTURE(bad.value);
		const std::string said = refusal(with_u32(good, std::string("qwen35.") + bad.key, bad.value));
		CAPTURE(said);
		CHECK(said.find(bad.said) != said.npos);
	}
	check_needed(good, "blk.1.",
	             {"ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight", "ssm_beta.weight",
	              "ssm_alpha.weight", "attn_gate.weight", "attn_qkv.weight"});
	CHECK(refusal(renamed(golden("qwen3next"), "blk.0.ssm_ba.weight", "blk.0.ssm_xx.weight"))
	          .find("tensor blk.0.ssm_ba.weight is missing") != std::string::npos);
}

TEST_CASE("T13: layers with a convolution between gates: what files say, and wrong ones") {
	const Bytes good = golden("lfm2"), moe = golden("lfm2moe");
	const Recurrent conv{1, 0, 0, 32, 3, false, false, RecurrentKind::ShortConv};
	for (uint32_t l = 0; l < 4; ++l) CHECK(config_of(good).layers[l].recurrent == (l == 1 ? Recurrent{} : conv));
	CHECK(config_of(good).layers[1].n_kv_heads == 2);
	CHECK(config_of(moe).layers[0].recurrent.taps == 4);
	CHECK(config_of(moe).layers[0].experts.n == 0);
	CHECK(config_of(moe).layers[1].experts.gating == Gating::Sigmoid);
	check_refused(with_u32(good, "lfm2.shortconv.l_cache", 1), "key lfm2.shortconv.l_cache is 1; kvrun runs 2 to 16");
	check_refused(with_u32(good, "lfm2.shortconv.l_cache", 17), "key lfm2.shortconv.l_cache is 17; kvrun runs 2 to 16");
	check_refused(with_u32(good, "lfm2.shortconv.l_cache", 4),
	              "tensor blk.0.shortconv.conv.weight is (32, 3), the config says (32, 4)");
	check_refused(renamed(good, "lfm2.shortconv.l_cache", "lfm2.shortconv.l_other"), "lfm2.shortconv.l_cache");
	check_needed(good, "blk.2.", {"shortconv.in_proj.weight", "shortconv.conv.weight", "shortconv.out_proj.weight"});
	// a name that other programs write
	CHECK(config_of(good).final_norm == "token_embd_norm");
	check_refused(renamed(good, "token_embd_norm.weight", "token_embd_nork.weight"),
	              "tensor token_embd_norm.weight is missing");
	// head_count_kv: the element of the only layer that attends
	Bytes none = good, other = good;
	const size_t kv =
	    place_of(good, "lfm2.attention.head_count_kv") + std::string("lfm2.attention.head_count_kv").size();
	none[kv + 4 + 4 + 8 + 4] = std::byte(0);
	check_refused(none, "key lfm2.attention.head_count_kv is 0");
	other[kv + 4 + 4 + 8 + 8] = std::byte(2);
	check_refused(other, "tensor blk.2.attn_q.weight is missing");
}

TEST_CASE("T13: layers of Kimi delta attention: what files say, and wrong ones") {
	const Bytes good = golden("kimi_linear");
	const Config c = config_of(good);
	const Recurrent delta{4, 4, 16, 16, 4, false, false, RecurrentKind::ChannelDelta};
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK(c.layers[l].recurrent == (l == 2 ? Recurrent{} : delta));
		CHECK(c.layers[l].latent == (l == 2 ? Latent{32, 8, 16, 24, 0} : Latent{}));
		CHECK(c.layers[l].experts.n == (l == 0 ? 0 : 6));
	}
	CHECK(delta.decays() == 64);
	CHECK_FALSE(c.ropes[0].rotates);
	CHECK(c.ropes[0].dim == 8);
	CHECK(c.layers[1].experts.gating == Gating::Sigmoid);
	CHECK(c.layers[1].experts.normalise);
	CHECK(c.layers[1].experts.scale == doctest::Approx(2.446f));
	check_refused(with_u32(good, "kimi-linear.kda.head_dim", 0),
	              "key kimi-linear.kda.head_dim is 0; kvrun runs 8 to 256");
	check_refused(with_u32(good, "kimi-linear.kda.head_dim", 12), "4 heads of 12 channels; kvrun runs multiples of 8");
	check_refused(with_u32(good, "kimi-linear.kda.head_dim", 24), "tensor blk.0.attn_q.weight is (64, 32)");
	check_refused(with_u32(good, "kimi-linear.ssm.conv_kernel", 3),
	              "tensor blk.0.ssm_conv1d_q.weight is (64, 1, 4), the config says (64, 3)");
	check_refused(with_u32(good, "kimi-linear.ssm.conv_kernel", 17), "key kimi-linear.ssm.conv_kernel is 17");
	check_needed(good, "blk.1.",
	             {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
	              "ssm_conv1d_v.weight", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight",
	              "ssm_beta.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight", "attn_output.weight"});
}

TEST_CASE("T13: layers with keys of removal: what files say, and wrong ones") {
	const Bytes good = golden("rwkv7");
	const Config c = config_of(good), other = config_of(golden("arwkv7_plain"));
	for (uint32_t l = 0; l < 3; ++l) {
		const Recurrent& r = c.layers[l].recurrent;
		CHECK(r.n_heads == 2);
		CHECK(r.k_dim == 16);
		CHECK(r.share_rank == (l ? 8 : 0)); // the first layer has dummies in the file
		CHECK(r.gate_rank == 24);
		CHECK(r.mixes() == 6);
		CHECK(r.normed);
		CHECK(r.conv_words() == 2 * 32);
		CHECK(c.layers[l].mlp == MlpKind::Plain);
		CHECK(c.layers[l].mlp_shift);
		CHECK(other.layers[l].recurrent.mixes() == 5);
		CHECK(other.layers[l].recurrent.conv_words() == 32);
		CHECK_FALSE(other.layers[l].recurrent.normed);
		CHECK_FALSE(other.layers[l].mlp_shift);
	}
	CHECK(c.hidden_dim == 40);
	CHECK(c.first_values);
	CHECK(c.text_input.normed);
	CHECK_FALSE(other.text_input.normed);
	const CacheLayers layers(c);
	CHECK(layers.main_shape().n_layers == 0);
	CHECK(layers.states().bytes() == 3 * (2 * 32 + 2 * 16 * 16) * 4);
	check_refused(with_u32(good, "rwkv7.wkv.head_size", 0), "key rwkv7.wkv.head_size is 0; kvrun runs 8 to 128");
	check_refused(with_u32(good, "rwkv7.wkv.head_size", 12), "kvrun runs multiples of 8 that divide the 32 channels");
	check_refused(with_u32(good, "rwkv7.wkv.head_size", 24), "kvrun runs multiples of 8 that divide the 32 channels");
	check_refused(with_u32(good, "rwkv7.attention.decay_lora_rank", 0), "key rwkv7.attention.decay_lora_rank is 0");
	check_refused(with_u32(good, "rwkv7.attention.decay_lora_rank", 16), "tensor blk.0.time_mix_w1.weight is (8, 32)");
	check_refused(with_u32(good, "rwkv7.attention.gate_lora_rank", 0),
	              "tensor blk.0.time_mix_lerp_fused.weight is (6, 1, 1, 32), the config says (5, 32)");
	check_refused(with_u32(good, "rwkv7.feed_forward_length", 0), "key rwkv7.feed_forward_length is 0");
	check_needed(good, "blk.1.",
	             {"time_mix_lerp_fused.weight", "time_mix_receptance.weight", "time_mix_key.weight",
	              "time_mix_value.weight", "time_mix_w0.weight", "time_mix_a1.weight", "time_mix_v2.weight",
	              "time_mix_g1.weight", "time_mix_k_k.weight", "time_mix_k_a.weight", "time_mix_r_k.weight",
	              "time_mix_output.weight", "channel_mix_lerp_k.weight", "channel_mix_key.weight",
	              "channel_mix_value.weight"});
}

TEST_CASE("T13: state-space layers: what files say, and wrong ones") {
	const Bytes good = golden("granitehybrid"), moe = golden("granitehybrid_moe");
	const Config c = config_of(good), m = config_of(moe);
	const Recurrent two{8, 2, 16, 8, 4, false, false, RecurrentKind::StateSpace, true};
	for (uint32_t l = 0; l < 4; ++l) CHECK(c.layers[l].recurrent == (l == 1 ? Recurrent{} : two));
	CHECK_FALSE(c.ropes[0].rotates);
	CHECK(m.layers[0].recurrent == Recurrent{8, 1, 24, 8, 4, false, false, RecurrentKind::StateSpace, true});
	CHECK(m.layers[0].experts.shared_dim == 24);
	const auto with = [&](const char* key, uint32_t v) {
		return with_u32(good, std::string("granitehybrid.") + key, v);
	};
	check_refused(with("ssm.conv_kernel", 17), "key granitehybrid.ssm.conv_kernel is 17; kvrun runs 2 to 16");
	check_refused(with("ssm.conv_kernel", 3), "tensor blk.0.ssm_conv1d.weight is (128, 4), the config says (128, 3)");
	check_refused(with("ssm.state_size", 512), "key granitehybrid.ssm.state_size is 512; kvrun runs 8 to 256");
	check_refused(with("ssm.state_size", 24), "tensor blk.0.ssm_in.weight is (200, 32), the config says (232, 32)");
	check_refused(with("ssm.group_count", 3), "8 heads of recurrent layers share 3 key heads");
	check_refused(with("ssm.time_step_rank", 16), "tensor blk.0.ssm_in.weight is (200, 32), the config says (208, 32)");
	check_refused(with("ssm.inner_size", 36), "8 heads of recurrent layers share 2 key heads and 36 channels");
	check_needed(
	    good, "blk.2.",
	    {"ssm_in.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm.weight", "ssm_out.weight"});
	check_refused(renamed(good, "blk.2.ssm_conv1d.bias", "blk.2.ssm_conv1x.bias"),
	              "tensor blk.2.ssm_conv1d.bias is missing");
}

TEST_CASE("T13: layers that are a state, attention or an MLP alone: what files say, and wrong ones") {
	const Bytes good = golden("nemotron_h"), moe = golden("nemotron_h_moe");
	const Config c = config_of(good), m = config_of(moe);
	std::string parts, parts_of_moe;
	const auto part = [](const Layer& l) {
		return l.recurrent.n_heads ? 'M' : l.mixes ? '*' : l.experts.n ? 'E' : '-';
	};
	for (const Layer& l : c.layers) parts += part(l);
	for (const Layer& l : m.layers) parts_of_moe += part(l);
	CHECK(parts == "MM-*-M-");
	CHECK(parts_of_moe == "ME*EME");
	CHECK(c.layers[0].mlp == MlpKind::None);
	CHECK(c.layers[0].recurrent.n_key_heads == 4);
	CHECK_FALSE(c.ropes[0].rotates);
	CHECK(kv_f16_bytes(c) == 2 * 2 * 2 * 16);
	check_needed(good, "",
	             {"blk.2.ffn_up.weight", "blk.2.attn_norm.weight", "blk.3.attn_q.weight", "blk.5.ssm_in.weight"});
	const auto list = [](Bytes b, std::string_view key, size_t element, uint8_t value) {
		b[place_of(b, key) + key.size() + 4 + 4 + 8 + 4 * element] = std::byte(value);
		return b;
	};
	check_refused(list(good, "nemotron_h.feed_forward_length", 3, 40), "layer 3 has KV heads and an MLP");
	check_refused(list(good, "nemotron_h.feed_forward_length", 2, 0), "tensor blk.2.ssm_in.weight is missing");
	check_refused(list(good, "nemotron_h.attention.head_count_kv", 3, 0),
	              "key nemotron_h.attention.head_count_kv is 0");
}

TEST_CASE("recurrent layers: plans count states, and tokens of the layers that attend") {
	const Config c = parse_synth("qwen3.5-35b-a3b:q4_k").config;
	const CacheLayers layers(c);
	CHECK(layers.main_shape().n_layers == 10);
	// 30 layers: 32 heads of 128 x 128, and 3 rows of 8192 channels, f32
	CHECK(layers.states().bytes() == size_t(30) * 4 * (32 * 128 * 128 + 3 * 8192));
	const ModelMemory m = model_memory(c, 0, 512);
	CHECK(m.state_bytes == 2 * layers.states().bytes());
	const CacheLayers conv(parse_synth("lfm2-1.2b:q4_k").config);
	CHECK(conv.main_shape().n_layers == 6);
	const CacheLayers scan(parse_synth("granite-4-h-tiny:q4_k").config);
	CHECK(scan.main_shape().n_layers == 4);
	// 36 layers: 48 heads of 128 x 64, and 3 rows of 3072 + 256 channels, f32
	CHECK(scan.states().bytes() == size_t(36) * 4 * (48 * 128 * 64 + 3 * 3328));
	const CacheLayers single(parse_synth("nemotron-nano-9b-v2:q4_k").config);
	CHECK(single.main_shape().n_layers == 4);
	CHECK(single.states().n_layers() == 27);
	CHECK(conv.states().bytes() == size_t(10) * 4 * 2 * 2048); // 10 layers: 2 rows of 2048 channels, f32
	const MemoryAccount a = memory_account(m, uint64_t(24) << 30, 4096);
	CHECK(a.states == m.state_bytes);
	CHECK(a.weights + a.window + a.states + a.activations + a.prompt + a.reserve + a.cache == a.total);
}

TEST_CASE("recurrent layers alone: no context fits where weights, states and activations do not") {
	const Config c = parse_synth("falcon-mamba-7b:q4_k").config;
	const ModelMemory m = model_memory(c, uint64_t(4) << 30, 512);
	const KvPlan plan = plan_of_model(CacheLayers(c), parse_policy("fp16"), 4096);
	REQUIRE(most_bytes(plan, 4096) == 0);
	for (const uint64_t total : {uint64_t(1) << 30, m.weight_bytes, m.weight_bytes + m.state_bytes,
	                             m.weight_bytes + m.state_bytes + m.fixed_bytes}) {
		CAPTURE(total);
		const MemoryAccount a = memory_account(m, total, 4096);
		CHECK(a.exceeded);
		CHECK(a.cache == 0);
		CHECK(capacity(plan, m, total).by_memory == 0);
	}
	const uint64_t enough = uint64_t(8) << 30;
	CHECK_FALSE(memory_account(m, enough, 4096).exceeded);
	CHECK(capacity(plan, m, enough).by_memory == c.max_seq);
	CHECK(capacity(plan, m, enough).kept == c.max_seq);
}
