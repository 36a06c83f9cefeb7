// Config: what single families have, and what of it is refused.
#include "models/config.h"
#include "models/families.h"
#include "models/family_layers.h"
#include "models/streams.h"
#include "models/traits.h"
#include "tests/support/config_of.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

// A file of tests/golden/tiny, whose architecture is `arch`.
static GgufBuilder golden_file(const char* name, const char* arch) {
	return GgufBuilder::copy_as(Gguf::open(fmt::format("{}/tests/golden/tiny/{}.gguf", KVRUN_SOURCE_DIR, name)), arch);
}

TEST_CASE("config: gemma4, as far as kvrun runs it") {
	TinyShape s;
	s.arch = "gemma4";
	GgufBuilder b = tiny_model(s);
	for (const char* norm : {"post_attention_norm", "post_ffw_norm"})
		b.tensor_f32(fmt::format("blk.0.{}.weight", norm), {16}, std::vector<float>(16, 1));
	for (const char* norm : {"attn_q_norm", "attn_k_norm"})
		b.tensor_f32(fmt::format("blk.0.{}.weight", norm), {8}, std::vector<float>(8, 1));
	CHECK(config_of(b).layers[0].v_norm);
	CHECK(!config_of(b).layers[0].v_is_k);
	CHECK(config_of(b).layers[0].output_scale == 1);
	b.erase_tensor("blk.0.attn_v.weight");
	b.tensor_f32("blk.0.layer_output_scale.weight", {1}, {0.5f});
	const Layer layer = config_of(b).layers[0];
	CHECK(layer.v_is_k);
	CHECK(layer.output_scale == 0.5f);
	CHECK(layer.attention_scale == 1);
	GgufBuilder bad = b;
	bad.u32("gemma4.attention.shared_kv_layers", 1);
	has(refusal(bad), "key gemma4.attention.shared_kv_layers is 1: of 1 layers, these last ones find no layer");
	bad = b;
	bad.u32("gemma4.embedding_length_per_layer_input", 8);
	has(refusal(bad), "tensor per_layer_token_embd.weight is missing");
}

TEST_CASE("config: inputs of layers: their tensors, blocks of the table, families that have none") {
	TinyShape s;
	s.arch = "gemma4";
	GgufBuilder b = tiny_model(s);
	for (const char* norm : {"post_attention_norm", "post_ffw_norm", "post_norm"})
		b.tensor_f32(fmt::format("blk.0.{}.weight", norm), {16}, std::vector<float>(16, 1));
	for (const char* norm : {"attn_q_norm", "attn_k_norm"})
		b.tensor_f32(fmt::format("blk.0.{}.weight", norm), {8}, std::vector<float>(8, 1));
	const auto zeros = [&](const char* name, std::vector<uint64_t> dims) {
		uint64_t n = 1;
		for (const uint64_t d : dims) n *= d;
		b.tensor_f32(name, dims, std::vector<float>(n));
	};
	const uint64_t vocab = b.find("token_embd.weight").dims[1];
	b.u32("gemma4.embedding_length_per_layer_input", 8);
	zeros("per_layer_token_embd.weight", {8, vocab});
	zeros("per_layer_model_proj.weight", {16, 8});
	zeros("per_layer_proj_norm.weight", {8});
	zeros("blk.0.inp_gate.weight", {16, 8});
	zeros("blk.0.proj.weight", {8, 16});
	CHECK(refusal(b) == "");
	CHECK(config_of(b).layer_input_dim == 8);
	GgufBuilder bad = b;
	bad.find("per_layer_token_embd.weight").dims = {4, 2 * vocab};
	has(refusal(bad),
	    fmt::format("tensor per_layer_token_embd.weight is ({}, 4), the config says ({}, 8)", 2 * vocab, vocab));
	bad = b;
	bad.tensor("per_layer_token_embd.weight", DType::Q8_0, {32, vocab}, std::string(34 * vocab, '\0'));
	has(refusal(bad), "tensor per_layer_token_embd.weight is Q8_0, in blocks of 32; a layer reads 8 channels of a row");
	bad = b;
	bad.u32("gemma4.embedding_length_per_layer_input", UINT32_MAX / 2);
	has(refusal(bad), "too large; the file is damaged");
	bad = b;
	bad.erase_tensor("blk.0.inp_gate.weight");
	has(refusal(bad), "tensor blk.0.inp_gate.weight is missing");
	bad = tiny_model();
	bad.u32("llama.embedding_length_per_layer_input", 8);
	has(refusal(bad), "key llama.embedding_length_per_layer_input is 8; kvrun runs llama without inputs of layers");
}

TEST_CASE("config: several residual streams, and gates cut in some layers") {
	const std::string path = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/gemma3n.gguf";
	const Config c = open_model(path).config;
	CHECK((c.streams.n == 4 && c.streams.active == 0 && c.layer_input_dim == 16));
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK(c.layers[l].laurel_rank == 8);
		CHECK(std::isfinite(c.layers[l].gate_cut) == (l < 2));
		CHECK(c.layers[l].kv_layer == (l < 2 ? l : l - 2));
	}
	CHECK(c.layers[0].gate_cut == doctest::Approx(0.5244));
	GgufBuilder b;
	b.text("general.architecture", "gemma3n");
	const Gguf g = Gguf::open(path);
	Config other = c;
	const auto read = [&](const GgufBuilder& keys) {
		const auto bytes = keys.bytes();
		const Gguf file = Gguf::parse("test.gguf", bytes);
		read_streams({file, "gemma3n"}, *find_family("gemma3n"), other);
	};
	const auto refused = [&](const GgufBuilder& keys, Code code, const char* part) {
		try {
			read(keys);
			FAIL_CHECK("no error");
		} catch (const Error& e) {
			CHECK(e.code == code);
			has(e.what(), part);
		}
	};
	read(b); // as llama.cpp has it: four streams, the first ten layers
	CHECK(other.layers[3].gate_cut == kGateCut);
	b.u32("gemma3n.altup.num_inputs", 5);
	refused(b, Code::Unsupported, "test.gguf: key gemma3n.altup.num_inputs is 5; kvrun runs 2 to 4 residual streams");
	b.u32("gemma3n.altup.num_inputs", 3).u32("gemma3n.altup.active_idx", 3);
	refused(b, Code::Format, "key gemma3n.altup.active_idx is 3, there are 3 streams");
	b.u32("gemma3n.altup.active_idx", 2);
	b.numbers("gemma3n.activation_sparsity_scale", GgufType::F32, std::vector<float>{1, 2, 3});
	refused(b, Code::Format, "key gemma3n.activation_sparsity_scale has 3 elements, the model has 4 layers");
	b.numbers("gemma3n.activation_sparsity_scale", GgufType::F32, std::vector<float>{1, 2, NAN, 3});
	refused(b, Code::Format, "key gemma3n.activation_sparsity_scale is nan for layer 2");
	other.layer_input_dim = 0;
	refused(b, Code::Format, "key gemma3n.embedding_length_per_layer_input is missing or 0");
}

TEST_CASE("config: minicpm: files of 2024 have no scales; they are those of the published models") {
	GgufBuilder b = golden_file("minicpm", "minicpm");
	for (const char* key : {"minicpm.embedding_scale", "minicpm.residual_scale", "minicpm.logit_scale"}) b.erase(key);
	const Config c = config_of(b);
	CHECK(c.embedding_scale == 12);
	CHECK(c.layers[1].residual_scale == doctest::Approx(1.4 / std::sqrt(2)));
	CHECK(c.logit_scale == doctest::Approx(256. / 32));
	b.f32("minicpm.embedding_scale", 3);
	CHECK(config_of(b).embedding_scale == 3);
}

TEST_CASE("config: deci: layers lack attention, the MLP, or both") {
	const GgufBuilder good = golden_file("deci", "deci");
	const Config c = config_of(good);
	const auto parts = [](const Config& of) {
		std::string out;
		for (const Layer& l : of.layers)
			out += fmt::format("{}{} ", l.mixes ? l.n_heads : 0, l.mlp == MlpKind::None ? 0 : l.hidden_dim);
		return out;
	};
	CHECK(parts(c) == "4256 0256 00 4512 ");
	CHECK((has_own_kv(c, 0) && !has_own_kv(c, 1) && !has_own_kv(c, 2) && has_own_kv(c, 3)));
	const auto numbers = [&](const char* key, std::vector<uint32_t> v) {
		GgufBuilder b = good;
		b.numbers(key, GgufType::U32, v);
		return b;
	};
	has(refusal(numbers("deci.attention.head_count", {4, 4, 0, 4})),
	    "layer 1 has 4 heads without keys and values (linear attention); kvrun runs deci without it");
	has(refusal(numbers("deci.attention.head_count", {0, 0, 0, 0})),
	    "key deci.attention.head_count is 0; the file is damaged");
	has(refusal(numbers("deci.attention.head_count_kv", {2, 0, 0, 0})), "layer 3 has 4 heads without keys and values");
	has(refusal(numbers("deci.feed_forward_length", {256, 256, 256, 512})), "tensor blk.2.ffn_norm.weight is missing");
	has(refusal(numbers("deci.feed_forward_length", {256, 0, 0, 512})),
	    "tensor blk.1.ffn_norm.weight belongs to a variant of deci");
}

TEST_CASE("config: layers without positions by key, and a shared expert whose gate and up are one tensor") {
	const auto golden = [](const char* name) { return golden_file(name, "granite_swa"); };
	GgufBuilder b = golden("granite_swa");
	Config c = config_of(b);
	CHECK((c.layers[0].sinks && !c.layers[0].window && c.layers[1].window.tokens == 8));
	CHECK((!c.ropes[c.layers[0].rope].rotates && c.ropes[c.layers[1].rope].rotates));
	b.numbers("granite_swa.attention.rope_pattern", GgufType::U32, std::vector<uint32_t>{1, 0, 1});
	has(refusal(b), "key granite_swa.attention.rope_pattern has 3 elements, the model has 4 layers");
	b.numbers("granite_swa.attention.rope_pattern", GgufType::U32, std::vector<uint32_t>{1, 1, 1, 0});
	c = config_of(b);
	CHECK((c.ropes[c.layers[0].rope].rotates && !c.ropes[c.layers[3].rope].rotates && c.layers[3].window));
	b = golden("granite_swa_moe");
	c = config_of(b);
	CHECK((c.layers[0].experts.shared_fused && c.layers[0].experts.shared_dim == 24 && c.ropes.size() == 1));
	b.u32("granite_swa.expert_shared_feed_forward_length", 23);
	has(refusal(b), "tensor blk.0.ffn_gate_shexp.weight is missing");
	b.erase_tensor("blk.1.attn_sinks.weight");
	b.u32("granite_swa.expert_shared_feed_forward_length", 24);
	has(refusal(b), "tensor blk.1.attn_sinks.weight is missing");
}

TEST_CASE("config: layers that run several times have keys and values of their own each time") {
	const auto golden = [](const char* name) { return golden_file(name, "nanbeige"); };
	GgufBuilder b = golden("nanbeige");
	b.u32("nanbeige.num_loops", 3);
	Config c = config_of(b);
	CHECK((c.n_layers == 6 && c.rounds == 3 && layers_with_weights(c) == 2 && c.layers.size() == 6));
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		CHECK((c.layers[l].kv_layer == l && has_own_kv(c, l)));
		CHECK(c.layers[l].ends_round == (l == 1 || l == 3)); // the last round ends with the model's norm anyway
	}
	CHECK(tensor_specs(c).size() == tensor_specs(config_of(golden("nanbeige"))).size());
	CHECK(kv_f16_bytes(c) == 3 * kv_f16_bytes(config_of(b.u32("nanbeige.num_loops", 1))));
	has(refusal(b.u32("nanbeige.num_loops", 0)), "key nanbeige.num_loops is 0, expected 1 to 64");
	has(refusal(b.u32("nanbeige.num_loops", 65)), "key nanbeige.num_loops is 65, expected 1 to 64");
	const auto bytes = golden("nanbeige").u32("nanbeige.num_loops", 64).bytes();
	const Gguf file = Gguf::parse("test.gguf", bytes);
	Config many;
	many.n_layers = 65, many.layers.resize(65);
	has(refusal_by([&] {
		    repeat_layers({file, "nanbeige"}, *find_family("nanbeige"), many);
	    }),
	    "65 layers repeated 64 times, at most 4096 are possible");
	c = config_of(golden("nanbeige_plain"));
	CHECK((c.rounds == 3 && std::ranges::none_of(c.layers, &Layer::ends_round)));
}

TEST_CASE("config: gates of attention, of heads or of channels, with q, k and v in one tensor or in three") {
	GgufBuilder b = golden_file("laguna", "laguna");
	Config c = config_of(b);
	CHECK((c.layers[0].gate_by_head && c.layers[0].gate_function == Activation::Softplus));
	CHECK((c.layers[0].n_heads == 4 && c.layers[1].n_heads == 8 && !c.layers[0].window && c.layers[3].window));
	CHECK((c.ropes[c.layers[0].rope].dim == 8 && c.ropes[c.layers[1].rope].dim == 16));
	CHECK((c.ropes[0].scaling == RopeScaling::Yarn && c.ropes[1].scaling == RopeScaling::None));
	b.find("blk.2.attn_gate.weight").dims = {64, 4};
	has(refusal(b), "tensor blk.2.attn_gate.weight is (4, 64), the config says (8, 32)");
	CHECK(!config_of(golden_file("laguna_channels", "laguna")).layers[0].gate_by_head);
	c = config_of(golden_file("spark2_5", "spark2_5"));
	CHECK((c.layers[0].fused_qkv && c.layers[0].gate_by_head && c.layers[0].gate_function == Activation::Sigmoid));
	CHECK((c.layers[0].window && !c.layers[1].window && c.layers[2].window));
	b = golden_file("muse_glimmer", "muse-glimmer");
	c = config_of(b);
	CHECK((c.embedding_norm && c.out_norm_eps == 1e-8f && c.layers[0].output_gate && !c.layers[0].gate_by_head));
	b.erase_tensor("blk.1.attn_gate.weight");
	has(refusal(b), "tensor blk.1.attn_gate.weight is missing");
}

TEST_CASE("config: values narrower than keys, sinks in layers with a window alone (mimo2)") {
	GgufBuilder b = golden_file("mimo2", "mimo2");
	const Config c = config_of(b);
	for (uint32_t l = 0; l < 4; ++l) {
		const Layer& layer = c.layers[l];
		const bool window = l == 1 || l == 2;
		CHECK((layer.head_dim == 24 && layer.narrow_v == 16 && value_dim(layer) == 16 && second_dim(layer) == 24));
		CHECK((bool(layer.window) == window && layer.sinks == window && layer.n_kv_heads == (window ? 2u : 1u)));
		CHECK((layer.attn_gain == 0.6f && (l == 0) == (layer.experts.n == 0)));
	}
	CHECK((c.ropes[0].theta == 50000 && c.ropes[1].theta == 1000 && c.ropes[1].dim == 8));
	GgufBuilder bad = b;
	has(refusal(bad.u32("mimo2.attention.value_length", 12)), "keys have 24 channels per head, values 12");
	bad = b;
	has(refusal(bad.u32("mimo2.attention.value_length", 8)), "tensor blk.0.attn_v.weight is");
	bad = b;
	has(refusal(bad.f32("mimo2.attention.value_scale", 0)), "key mimo2.attention.value_scale is 0");
	bad = b;
	has(refusal(bad.erase_tensor("blk.1.attn_sinks.weight")), "tensor blk.1.attn_sinks.weight is missing");
}

TEST_CASE("config: norms of what the last matrices read, an activation by a key (bitnet)") {
	CHECK(config_of(golden_file("bitnet", "bitnet")).layers[1].activation == Activation::Silu);
	GgufBuilder b = golden_file("bitnet_relu2", "bitnet");
	const Config c = config_of(b);
	CHECK((c.layers[1].sub_norms && c.layers[1].activation == Activation::Relu2 && c.ropes[0].neox));
	GgufBuilder bad = b;
	has(refusal(bad.text("bitnet.hidden_activation", "mish")),
	    "key bitnet.hidden_activation is mish; kvrun knows gelu silu gelu_pytorch_tanh relu2");
	for (const char* name : {"blk.1.attn_sub_norm.weight", "blk.0.ffn_sub_norm.weight"}) {
		bad = b;
		has(refusal(bad.erase_tensor(name)), fmt::format("tensor {} is missing", name));
	}
	bad = b;
	bad.find("blk.0.ffn_sub_norm.weight").dims = {20, 2};
	has(refusal(bad), "tensor blk.0.ffn_sub_norm.weight is (2, 20), the config says (1, 40)");
	bad = golden_file("qwen3", "qwen3");
	has(refusal(bad.tensor_f32("blk.0.attn_sub_norm.weight", {4}, {1, 1, 1, 1})),
	    "tensor blk.0.attn_sub_norm.weight belongs to a variant of qwen3 that kvrun does not run");
}

TEST_CASE("config: norms of groups of channels, gates and norms of heads where the file has them (k2-horizon)") {
	GgufBuilder b = golden_file("k2_horizon", "k2-horizon");
	const Config c = config_of(b), plain = config_of(golden_file("k2_horizon_dense", "k2-horizon"));
	CHECK((c.norm_groups == 4 && c.layers[0].qk_norm == QkNorm::HeadOwn && c.layers[0].output_gate));
	CHECK(
	    (c.layers[0].gate_scale == kLn2 && c.layers[0].attn_gain == 1 / kLn2 && c.layers[1].experts.shared_dim == 16));
	CHECK((c.layers[0].experts.n == 0 && c.layers[1].experts.n == 8 && c.layers[1].experts.gating == Gating::Sigmoid));
	CHECK((plain.norm_groups == 1 && plain.layers[1].qk_norm == QkNorm::None && !plain.layers[1].output_gate));
	CHECK((plain.layers[1].attn_gain == 1 && plain.layers[1].experts.n == 0));
	GgufBuilder bad = b;
	for (const uint32_t groups : {0u, 5u, 64u})
		has(refusal(bad.u32("k2-horizon.attention.group_norm_groups", groups)),
		    fmt::format("key k2-horizon.attention.group_norm_groups is {}, rows have 32 channels", groups));
	bad = b;
	has(refusal(bad.erase_tensor("blk.1.attn_gate.weight")), "tensor blk.1.attn_gate.weight is missing");
}

TEST_CASE("config: experts of values (k2-horizon)") {
	GgufBuilder b = golden_file("k2_horizon_values", "k2-horizon");
	const Config c = config_of(b);
	const Experts& e = c.layers[1].value_experts;
	CHECK((c.layers[0].value_experts.n == 0 && e.n == 6 && e.used == 2 && e.hidden_dim == 32 && e.scale == 1.5f));
	CHECK((e.gating == Gating::Sigmoid && e.normalise && e.choice_bias && !c.layers[1].output_gate));
	GgufBuilder bad = b;
	has(refusal(bad.u32("k2-horizon.attention.value_expert_used_count", 7)),
	    "key k2-horizon.attention.value_expert_used_count is 7, expected 1 to 6 experts");
	bad = b;
	has(refusal(bad.u32("k2-horizon.attention.value_expert_count", 5)), "tensor blk.1.attn_v_gate.weight is (6, 32)");
	bad = b;
	has(refusal(bad.erase("k2-horizon.attention.value_expert_count")), "tensor blk.1.attn_v.weight is missing");
	bad = golden_file("qwen3", "qwen3");
	has(refusal(bad.u32("qwen3.attention.value_expert_count", 4)),
	    "key qwen3.attention.value_expert_count is 4; kvrun runs qwen3 without experts of values");
}

TEST_CASE("config: norms whose names have nothing behind them (plamo3); latents and MLPs without gate (plm)") {
	GgufBuilder b = golden_file("plamo3", "plamo3");
	Config c = config_of(b);
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK(c.layers[l].window.tokens == (l < 3 ? 8 : 0));
		CHECK(c.ropes[c.layers[l].rope].theta == (l < 3 ? 100 : 1e6f));
		CHECK((c.layers[l].out_norms_bare && c.layers[l].fused_qkv && c.layers[l].fused_gate_up));
	}
	b.erase_tensor("blk.2.post_ffw_norm");
	has(refusal(b), "tensor blk.2.post_ffw_norm is missing");
	c = read_config(Gguf::open(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/plm.gguf"));
	CHECK((c.layers[0].latent.rank == 32 && c.layers[0].latent.q_rank == 0 && c.layers[0].mlp == MlpKind::Plain));
	CHECK((c.layers[0].activation == Activation::Relu2 && c.tied_embedding));
}

TEST_CASE("config: MLPs beside attention: by a key (gptneox), by tensors (falcon); limits of gates (maple)") {
	CHECK(config_of(golden_file("gptneox", "gptneox")).layers[0].mlp_input == MlpInput::Beside);
	CHECK(config_of(golden_file("gptneox_behind", "gptneox")).layers[0].mlp_input == MlpInput::Normed);
	const Layer one = config_of(golden_file("falcon", "falcon")).layers[0];
	CHECK((one.mlp_input == MlpInput::Parallel && std::string(one.attn_norm_name) == "attn_norm"));
	GgufBuilder b = golden_file("falcon_two_norms", "falcon");
	const Layer two = config_of(b).layers[1];
	CHECK((two.mlp_input == MlpInput::Beside && std::string(two.attn_norm_name) == "attn_norm_2"));
	CHECK(std::string(two.mlp_norm_name) == "attn_norm");
	b.erase_tensor("blk.1.attn_norm_2.bias");
	has(refusal(b), "tensor blk.1.attn_norm_2.bias is missing");
	const Config maple = config_of(golden_file("maple", "maple"));
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK((maple.layers[l].experts.limit == 1 && maple.layers[l].limits_gate));
		CHECK(maple.ropes[maple.layers[l].rope].rotates == bool(maple.layers[l].window));
	}
}

TEST_CASE("config: families of 2019 to 2024: tables of positions, norms without weights, limits, ALiBi, halves") {
	GgufBuilder b = golden_file("gpt2", "gpt2");
	Config c = config_of(b);
	CHECK((c.text_input.positions == 256 && !c.ropes[0].rotates && c.norm == NormKind::LayerBiased));
	b.u32("gpt2.context_length", 257);
	has(refusal(b), "tensor position_embd.weight has 256 rows, key gpt2.context_length is 257; wrong or damaged file");
	b.erase_tensor("position_embd.weight");
	has(refusal(b), "tensor position_embd.weight is missing; get the file again");
	b = golden_file("olmo", "olmo");
	c = config_of(b);
	CHECK((c.norm == NormKind::LayerBare && c.layers[1].qkv_limit == 0.5f));
	b.f32("olmo.attention.clamp_kqv", -1);
	has(refusal(b), "key olmo.attention.clamp_kqv is -1");
	CHECK(config_of(golden_file("olmo_unlimited", "olmo")).layers[0].qkv_limit == kUnlimited);
	CHECK(std::string(config_of(golden_file("dbrx", "dbrx")).layers[0].mlp_norm_name) == "attn_output_norm");
	CHECK(config_of(golden_file("qwen", "qwen")).hidden_dim == 40);
	b = golden_file("talkie", "talkie");
	c = config_of(b);
	CHECK((c.norm == NormKind::RmsBare && c.embedding_norm && c.layers[0].qk_norm == QkNorm::HeadGain));
	CHECK((c.layers[0].attn_gain != c.layers[1].attn_gain && c.layers[0].mlp_gain != c.layers[1].mlp_gain));
	CHECK(c.layers[0].embedding_gain != c.layers[1].embedding_gain);
	b.erase_tensor("blk.1.ffn_down.scale");
	has(refusal(b), "tensor blk.1.ffn_down.scale is missing; get the file again");
	b.tensor_f32("blk.1.ffn_down.scale", {1}, {INFINITY});
	has(refusal(b), "tensor blk.1.ffn_down.scale is not a finite number in F32; wrong or damaged file");
	b = golden_file("baichuan", "baichuan");
	CHECK(config_of(b).ropes[0].rotates);
	b.u32("baichuan.block_count", 40);
	has(refusal(b), "key baichuan.block_count is 40: models of baichuan of this size have ALiBi");
}

TEST_CASE("config: smallthinker: layers without a window come first and have no positions, if others have one") {
	GgufBuilder b = golden_file("smallthinker", "smallthinker");
	Config c = config_of(b);
	for (uint32_t l = 0; l < 5; ++l) {
		CHECK(bool(c.layers[l].window) == (l % 4 != 0));
		CHECK(c.ropes[c.layers[l].rope].rotates == (l % 4 != 0));
		CHECK((c.layers[l].experts.early && c.layers[l].experts.gating == Gating::Sigmoid));
	}
	b.erase("smallthinker.attention.sliding_window");
	c = config_of(b);
	for (const Layer& l : c.layers) CHECK((!l.window && c.ropes[l.rope].rotates));
}

TEST_CASE("config: step35: limits of SwiGLU of each layer, and RoPE over half of the channels that the file says") {
	const GgufBuilder good = golden_file("step35", "step35");
	Config c = config_of(good);
	CHECK((c.ropes[0].dim == 8 && c.ropes[1].dim == 16 && c.ropes[1].theta == 1e2f));
	CHECK((c.layers[1].experts.limit == kUnlimited && c.layers[2].experts.limit == 0.05f));
	CHECK((c.layers[0].mlp_limit == kUnlimited && c.layers[1].mlp_limit == 0.1f && c.layers[3].mlp_limit == 0.05f));
	const auto limits = [&](std::vector<float> v) {
		GgufBuilder b = good;
		b.numbers("step35.swiglu_clamp_exp", GgufType::F32, v);
		return b;
	};
	has(refusal(limits({0, 0, -1, 0})), "key step35.swiglu_clamp_exp is -1 for a layer; the file is damaged");
	has(refusal(limits({0, 0, 1})), "key step35.swiglu_clamp_exp has 3 elements, the model has 4 layers");
	has(refusal(limits({0, 0, 1, NAN})), "key step35.swiglu_clamp_exp is nan for layer 3; the file is damaged");
	GgufBuilder b = good;
	b.erase("step35.swiglu_clamp_exp");
	CHECK(config_of(b).layers[2].experts.limit == kUnlimited);
}

TEST_CASE("config: stablelm in parallel is what the file's key and all its layers say") {
	const auto golden = [](const char* name) { return golden_file(name, "stablelm"); };
	const auto is_parallel = [](const GgufBuilder& b) {
		return config_of(b).layers[0].mlp_input == MlpInput::Parallel;
	};
	const std::vector<float> ones(32, 1);
	const GgufBuilder parallel = golden("stablelm_parallel"), sequential = golden("stablelm_plain");
	CHECK(is_parallel(parallel));
	CHECK(config_of(parallel).layers[1].qk_norm == QkNorm::HeadLayer);
	CHECK(!is_parallel(sequential));
	CHECK(config_of(sequential).layers[1].qk_norm == QkNorm::None);
	GgufBuilder b = sequential; // converters write the key for files of the other kind, too
	b.flag("stablelm.use_parallel_residual", true);
	CHECK(!is_parallel(b));
	b.erase_tensor("blk.0.ffn_norm.weight");
	has(refusal(b), "tensor blk.0.ffn_norm.weight is missing");
	b = sequential;
	for (const char* name : {"blk.0.ffn_norm.weight", "blk.1.ffn_norm.weight", "blk.0.ffn_norm.bias"})
		b.erase_tensor(name);
	has(refusal(b), "tensor blk.0.ffn_norm.weight is missing");
	b.erase_tensor("blk.1.ffn_norm.bias"); // all are missing, but the key says that they should be there
	has(refusal(b), "tensor blk.0.ffn_norm.weight is missing");
	b = parallel;
	b.erase("stablelm.use_parallel_residual");
	has(refusal(b), "tensor blk.0.ffn_norm.weight is missing");
	b = parallel;
	b.tensor_f32("blk.1.ffn_norm.weight", {32}, ones);
	has(refusal(b), "tensor blk.0.ffn_norm.weight is missing");
	for (const char* name :
	     {"blk.0.attn_k_norm.weight", "blk.1.attn_q_norm.weight"}) { // one of a file's norms of heads
		b = parallel;
		b.erase_tensor(name);
		has(refusal(b), fmt::format("tensor {} is missing", name));
	}
	b = parallel;
	b.erase_tensor("blk.0.attn_q_norm.weight");
	has(refusal(b), "tensor blk.0.attn_k_norm.weight belongs to a variant of stablelm that kvrun does not run");
	b = parallel;
	b.find("blk.0.attn_q_norm.weight").dims = {16, 2};
	has(refusal(b), "tensor blk.0.attn_q_norm.weight is (2, 16), the config says (4, 8)");
}

TEST_CASE("config: factors of xIELU, of each layer or of all") {
	const GgufBuilder good = golden_file("apertus", "apertus");
	const auto numbers = [](GgufBuilder& b, const char* key, std::vector<float> v) {
		b.numbers(key, GgufType::F32, v);
	};
	GgufBuilder b = good;
	numbers(b, "xielu.alpha_p", {0, 50});
	numbers(b, "xielu.alpha_n", {-50, 1});
	numbers(b, "xielu.beta", {0.5f, 0.25f});
	b.f32("xielu.eps", -0.125f);
	Config c = config_of(b);
	CHECK(c.layers[0].xielu.positive == doctest::Approx(std::log(2.)));
	CHECK(c.layers[1].xielu.positive == 50);
	CHECK(c.layers[0].xielu.negative == 0.5f);
	CHECK(c.layers[1].xielu.negative == doctest::Approx(0.25 + std::log(1 + std::exp(1.))));
	CHECK((c.layers[0].xielu.linear == 0.5f && c.layers[1].xielu.linear == 0.25f));
	CHECK((c.layers[0].xielu.limit == -0.125f && c.layers[1].xielu.limit == -0.125f));
	for (const char* key : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"}) {
		b = good;
		b.erase(key);
		has(refusal(b), fmt::format("key {} is missing", key));
		numbers(b, key, {1, 2, 3});
		has(refusal(b), fmt::format("key {} has 3 elements, the model has 2 layers; the file is damaged", key));
		for (const float bad : {NAN, INFINITY, -INFINITY}) {
			numbers(b, key, {1, bad});
			has(refusal(b), fmt::format("key {} is {} for layer 1; the file is damaged", key, bad));
		}
		b.f32(key, NAN);
		has(refusal(b), fmt::format("key {} is nan", key));
	}
}
