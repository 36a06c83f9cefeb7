// Mixtures of experts in files: keys and tensors, and every contradiction between them.
#include "engine/core/log.h"
#include "engine/run/mlp_memory.h"
#include "models/experts.h"
#include "models/model.h"
#include "tests/support/config_of.h"
#include "tests/support/mixture_builder.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

Experts golden(const char* name, uint32_t layer = 1) {
	return open_model(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/" + name + ".gguf")
	    .config.layers.at(layer)
	    .experts;
}

// The message that refuses the model; "" if it is accepted.
std::string refusal(const GgufBuilder& b, Code want) {
	Code code{};
	const std::string what = refusal(b, &code);
	CHECK(code == want);
	return what;
}

std::string warnings_of(const GgufBuilder& b) {
	std::string out;
	set_log_sink([&](int, std::string_view line) { out += line; }, 0);
	config_of(b);
	set_log_sink({}, 0);
	return out;
}

} // namespace

TEST_CASE("experts: what the converter's files of each family say") {
	Experts e = golden("mixtral");
	CHECK(e.n == 5);
	CHECK(e.used == 2);
	CHECK(e.hidden_dim == 24);
	CHECK(e.normalise);
	CHECK(e.gating == Gating::Softmax);
	CHECK(e.shared_dim == 0);
	e = golden("qwen2moe");
	CHECK(!e.normalise);
	CHECK(e.shared_dim == 24);
	CHECK(e.shared_gate);
	CHECK(e.fused_gate_up);
	CHECK(golden("qwen3moe").normalise);
	CHECK(!golden("olmoe").normalise);
	e = golden("granitemoe_shared");
	CHECK(!e.fused_gate_up);
	CHECK(e.shared_dim == 24);
	CHECK(!e.shared_gate);
	CHECK(golden("granitemoe").shared_dim == 0);
	e = golden("ernie4_5_moe");
	CHECK(e.choice_bias);
	CHECK(e.normalise);
	CHECK(golden("ernie4_5_moe", 0).n == 0);
	e = golden("glm4moe");
	CHECK(e.gating == Gating::Sigmoid);
	CHECK(e.scale == 1.5f);
	CHECK(e.choice_bias);
	CHECK(e.normalise);
	CHECK(golden("glm4moe", 0).n == 0);
	e = golden("dots1");
	CHECK(e.n_groups == 4);
	CHECK(e.used_groups == 2);
	CHECK(e.scale == 2);
	CHECK(e.shared_dim == 32);
	CHECK(golden("dots1", 0).n == 0);
	e = golden("hunyuan_moe");
	CHECK(e.normalise);
	CHECK(e.shared_dim == 24);
	e = golden("gemma4_moe");
	CHECK(e.beside_mlp);
	CHECK(e.factors);
	CHECK(e.normalise);
	CHECK(e.fused_gate_up);
	e = golden("arctic");
	CHECK(e.at_input);
	CHECK(e.normalise);
	CHECK(e.hidden_dim == 24);
	e = golden("llama4");
	CHECK(e.gating == Gating::Sigmoid);
	CHECK(e.weigh_input);
	CHECK(!e.normalise);
	CHECK(e.hidden_dim == 24);
	CHECK(e.shared_dim == 24);
	CHECK(golden("llama4", 2).n == 0);
	CHECK(golden("llama4", 3).n == 6);
	e = golden("phimoe");
	CHECK(e.gating == Gating::Near);
	CHECK(!e.normalise);
}

TEST_CASE("experts: weights that multiply inputs") {
	GgufBuilder b = tiny_mixture({.arch = "llama4", .used = 1});
	const Config c = config_of(b);
	CHECK(c.layers[0].experts.weigh_input);
	CHECK(c.layers[0].qk_norm == QkNorm::HeadUnit);
	b.u32("llama4.expert_used_count", 2);
	CHECK(config_of(b).layers[0].experts.used == 2);
	b = tiny_mixture({.arch = "llama4", .used = 2, .bias = true});
	has(refusal(b, Code::Unsupported), "tensor blk.0.ffn_down_exps.bias does not fit llama4");
	b = tiny_mixture({.arch = "llama4", .used = 2});
	b.tensor_f32("blk.0.ffn_down_exps.scale", {4}, {1, 1, 1, 1});
	has(refusal(b, Code::Unsupported), "tensor blk.0.ffn_down_exps.scale does not fit llama4");
	CHECK(open_model("synth:llama-4-maverick,layers=4:q4_k").config.layers[0].qk_norm == QkNorm::None);
}

TEST_CASE("experts: a latent between two matrices: its memory, sizes and tensors that do not fit") {
	const GgufBuilder good = GgufBuilder::copy_as(
	    Gguf::open(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/nemotron_h_latent.gguf"), "nemotron_h_moe");
	CHECK(config_of(good).layers[1].experts.latent_dim == 24);
	for (const uint32_t width : {0u, 33u, UINT32_MAX}) {
		GgufBuilder b = good;
		b.u32("nemotron_h_moe.moe_latent_size", width);
		has(refusal(b, Code::Format),
		    fmt::format("key nemotron_h_moe.moe_latent_size is {}, expected 1 to 32 channels", width));
	}
	GgufBuilder b = good;
	b.u32("nemotron_h_moe.moe_latent_size", 16);
	has(refusal(b, Code::Format), "tensor blk.1.ffn_latent_down.weight is (24, 32), the config says (16, 32)");
	for (const char* name : {"blk.1.ffn_latent_down.weight", "blk.3.ffn_latent_up.weight"}) {
		b = good;
		b.erase_tensor(name);
		has(refusal(b, Code::Format), fmt::format("tensor {} is missing", name));
	}
	b = good;
	b.erase("nemotron_h_moe.moe_latent_size");
	has(refusal(b, Code::Format), "tensor blk.1.ffn_up_exps.weight is (6, 16, 24), the config says (6, 16, 32)");
	b = tiny_mixture({.arch = "llama4"});
	b.u32("llama4.moe_latent_size", 8);
	has(refusal(b, Code::Unsupported),
	    "key llama4.moe_latent_size is 8; kvrun runs llama4 without a latent of experts");

	Config c = open_model("synth:nemotron-super-120b-a12b,layers=8:q4_k").config;
	const size_t bytes = MlpMemory::bytes(c, 64);
	CHECK(c.layers[1].experts.latent_dim == 1024);
	for (Layer& l : c.layers) l.experts.latent_dim = 0;
	CHECK(MlpMemory::bytes(c, 64) - bytes == size_t(64) * 4 * (22 * (4096 - 1024) - 1024));
}

TEST_CASE("experts: what only tensors say, and what a file may leave out") {
	GgufBuilder b = tiny_mixture(
	    {.shared = 12, .dense_first = 1, .fused = true, .bias = true, .choice_bias = true, .shared_gate = true});
	const Config c = config_of(b);
	CHECK(c.layers[0].experts.n == 0);
	const Experts& e = c.layers[1].experts;
	CHECK(e.n == 4);
	CHECK(e.used == 2);
	CHECK(e.hidden_dim == 8);
	CHECK(e.shared_dim == 12);
	CHECK(e.fused_gate_up);
	CHECK(e.bias);
	CHECK(!e.router_bias);
	CHECK(e.choice_bias);
	CHECK(e.shared_gate);
	b = tiny_mixture({.hidden = 32}); // as in Mixtral: as wide as feed_forward_length
	b.erase("llama.expert_feed_forward_length");
	CHECK(config_of(b).layers[0].experts.hidden_dim == 32);
	b = tiny_mixture();
	b.erase("llama.feed_forward_length");
	CHECK(config_of(b).layers[0].experts.hidden_dim == 8);
	b = tiny_mixture();
	b.u32("llama.expert_gating_func", 2).flag("llama.expert_weights_norm", false).f32("llama.expert_weights_scale", 3);
	const Experts other = config_of(b).layers[0].experts;
	CHECK(other.gating == Gating::Sigmoid);
	CHECK(!other.normalise);
	CHECK(other.scale == 3);
	b = tiny_mixture({.arch = "olmoe"});
	for (const char* l : {"0", "1"})
		for (const auto& [name, n] : {std::pair{"q", 16}, {"k", 8}})
			b.tensor_f32(fmt::format("blk.{}.attn_{}_norm.weight", l, name), {uint64_t(n)},
			             std::vector<float>(size_t(n), 1));
	CHECK(!config_of(b).layers[0].experts.normalise);
	b.u32("olmoe.expert_gating_func", 3); // softmax over the chosen experts
	CHECK(config_of(b).layers[0].experts.normalise);
}

TEST_CASE("experts: one expert is a dense model, a number for each layer is one number") {
	GgufBuilder b = tiny_model();
	CHECK(refusal(b.u32("llama.expert_count", 0)) == "");
	GgufBuilder dense =
	    GgufBuilder::copy_as(Gguf::open(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/qwen3.gguf"), "qwen3");
	CHECK(config_of(dense.u32("qwen3.expert_count", 1)).layers[0].experts.n == 0);
	has(refusal(dense.u32("qwen3.expert_count", 2)), "is a mixture of 2 experts; kvrun runs dense models of qwen3");
	b = tiny_mixture();
	b.numbers("llama.expert_used_count", GgufType::U32, std::vector<uint32_t>{2, 2});
	CHECK(config_of(b).layers[0].experts.used == 2);
	b.numbers("llama.expert_used_count", GgufType::U32, std::vector<uint32_t>{2, 1});
	has(refusal(b), "llama.expert_used_count");
}

TEST_CASE("T13: numbers of experts that contradict each other or the tensors are refused") {
	struct Bad {
		const char* key;
		uint32_t value;
		const char* said;
	};
	for (const Bad& bad :
	     {Bad{"expert_count", 3, "tensor blk.0.ffn_gate_inp.weight is (4, 16), the config says (3, 16)"},
	      {"expert_count", 5, "tensor blk.0.ffn_gate_inp.weight is (4, 16), the config says (5, 16)"},
	      {"expert_count", 1, "key llama.expert_used_count is 2, expected 1 to 1 experts"},
	      {"expert_used_count", 0, "key llama.expert_used_count is 0, expected 1 to 4 experts"},
	      {"expert_used_count", 5, "key llama.expert_used_count is 5, expected 1 to 4 experts"},
	      {"expert_used_count", UINT32_MAX, "expected 1 to 4 experts"},
	      {"expert_feed_forward_length", 4,
	       "tensor blk.0.ffn_gate_exps.weight is (4, 8, 16), the config says (4, 4, 16)"},
	      {"expert_feed_forward_length", UINT32_MAX, "4 experts of 4294967295 channels"},
	      {"leading_dense_block_count", 3, "expected 0 to 2 layers"},
	      {"leading_dense_block_count", 1, "tensor blk.0.ffn_gate.weight is missing"},
	      {"interleave_moe_layer_step", 2, "tensor blk.0.ffn_gate.weight is missing"},
	      {"expert_shared_feed_forward_length", 8, "tensor blk.0.ffn_gate_shexp.weight is missing"},
	      {"expert_shared_count", 1, "tensor blk.0.ffn_gate_shexp.weight is missing"},
	      {"expert_group_count", 3, "2 of 4 experts cannot be chosen in 3 of 3 groups"},
	      {"expert_group_count", 5, "key llama.expert_group_count is 5, expected 2 to 4 groups"},
	      {"nextn_predict_layers", 2, "key llama.nextn_predict_layers is 2, the model has 2 layers"}}) {
		GgufBuilder b = tiny_mixture();
		b.u32(fmt::format("llama.{}", bad.key), bad.value);
		CAPTURE(bad.key);
		has(refusal(b, Code::Format), bad.said);
	}
	GgufBuilder b = tiny_mixture();
	b.u32("llama.expert_group_count", 2).u32("llama.expert_group_used_count", 3);
	has(refusal(b, Code::Format), "key llama.expert_group_used_count is 3, expected 1 to 2 groups");
	b.u32("llama.expert_group_used_count", 1);
	CHECK(refusal(b) == "");
	b.u32("llama.expert_used_count", 3);
	has(refusal(b, Code::Format), "3 of 4 experts cannot be chosen in 1 of 2 groups");
	b = tiny_mixture();
	b.f32("llama.expert_weights_scale", -1);
	has(refusal(b, Code::Format), "key llama.expert_weights_scale is -1, expected more than 0");
	b = tiny_mixture();
	b.u32("llama.expert_count", 100000);
	has(refusal(b, Code::Unsupported), "is a mixture of 100000 experts; kvrun runs up to 512");
	b = tiny_mixture();
	b.u32("llama.expert_gating_func", 9);
	has(refusal(b, Code::Unsupported), "key llama.expert_gating_func is 9; kvrun knows 1 softmax");
	b = tiny_mixture();
	b.u32("llama.expert_count", 0); // then a dense model
	has(refusal(b, Code::Format), "tensor blk.0.ffn_gate.weight is missing");
}

TEST_CASE("T14: a missing or misshaped tensor of a mixture is refused, whichever it is") {
	for (const bool fused : {false, true}) {
		const GgufBuilder good = tiny_mixture({.shared = 12, .fused = fused, .bias = true});
		REQUIRE(refusal(good) == "");
		for (const GgufBuilder::Tensor& t : good.tensors) {
			if (t.name == "output.weight" || !t.name.starts_with("blk.")) continue;
			GgufBuilder b = good;
			b.erase_tensor(t.name);
			CAPTURE(t.name);
			std::string said;
			try {
				config_of(b);
			} catch (const Error& e) { said = e.what(); }
			CHECK(said != ""); // it is missing, or tensors that belong to it are left over
			b = good;
			GgufBuilder::Tensor& m = b.find(t.name);
			m.dims.back() += 1;
			m.data.resize(m.data.size() * 2);
			said.clear();
			try {
				config_of(b);
			} catch (const Error& e) { said = e.what(); }
			CHECK(said != "");
		}
	}
	GgufBuilder b = tiny_mixture(); // as many elements, but another shape
	b.find("blk.0.ffn_down_exps.weight").dims = {8, 64};
	has(refusal(b, Code::Format), "tensor blk.0.ffn_down_exps.weight is (64, 8), the config says (4, 16, 8)");
}

TEST_CASE("T14: tensors of experts that nobody asked for are refused by name, parts for other uses left aside") {
	for (const char* name : {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_shexp.weight",
	                         "blk.0.exp_probs_b.bias", "blk.1.ffn_up_exps.scale", "blk.1.ffn_norm_exps.weight",
	                         "blk.1.ffn_gate_chexps.weight", "blk.1.ffn_latent_up.weight"}) {
		GgufBuilder b = tiny_mixture({.dense_first = 1});
		b.tensor_f32(name, {16}, std::vector<float>(16));
		has(refusal(b, Code::Unsupported),
		    fmt::format("tensor {} belongs to a variant of llama that kvrun does not run", name));
	}
	GgufBuilder b = tiny_mixture();
	b.erase_tensor("blk.0.ffn_gate_exps.weight")
	    .tensor_f32("blk.0.ffn_gate.0.weight", {16, 8}, std::vector<float>(128));
	has(refusal(b, Code::Unsupported),
	    "has a tensor for each expert, as blk.0.ffn_gate.0.weight; kvrun runs files with one");
	b = tiny_mixture();
	b.u32("llama.block_count", 3).u32("llama.nextn_predict_layers", 1);
	b.tensor_f32("blk.2.nextn.eh_proj.weight", {16}, std::vector<float>(16))
	    .tensor_f32("blk.2.attn_norm.weight", {16}, std::vector<float>(16))
	    .tensor_f32("v.blk.0.attn_q.bias", {16}, std::vector<float>(16));
	has(warnings_of(b), "3 tensors are not used, the first is blk.2.nextn.eh_proj.weight");
	CHECK(config_of(b).n_layers == 2);
	b.tensor_f32("blk.3.attn_norm.weight", {16}, std::vector<float>(16));
	has(refusal(b, Code::Format), "key llama.block_count is 3, and the file has tensors of 4 layers");
}

TEST_CASE("experts: cohere2moe: which layers have windows and positions, which norm, the mean with shared experts") {
	const auto file = [](const char* name) {
		return GgufBuilder::copy_as(Gguf::open(fmt::format("{}/tests/golden/tiny/{}.gguf", KVRUN_SOURCE_DIR, name)),
		                            "cohere2moe");
	};
	const auto windows = [](const Config& c) {
		std::string out;
		for (const Layer& l : c.layers) out += l.window ? 'w' : c.ropes[l.rope].rotates ? 'r' : '-';
		return out;
	};
	const GgufBuilder good = file("cohere2moe");
	Config c = config_of(good);
	CHECK(windows(c) == "rwww-");
	CHECK(c.norm == NormKind::Layer);
	CHECK((c.layers[0].experts.n == 0 && c.layers[1].experts.shared_mean && c.layers[1].experts.normalise));
	GgufBuilder b = good;
	b.erase("cohere2moe.attention.sliding_window_pattern"); // the family's
	CHECK(windows(config_of(b)) == "rwww-");
	b.u32("cohere2moe.attention.sliding_window_pattern", 2);
	CHECK(windows(config_of(b)) == "rw-w-");
	b = file("cohere2moe_rms");
	CHECK(config_of(b).norm == NormKind::Rms);
	CHECK(config_of(b).norm_eps == 2e-2f);
	b.f32("cohere2moe.attention.layer_norm_rms_epsilon", 0);
	c = config_of(b);
	CHECK((c.norm == NormKind::Layer && c.norm_eps == 1e-3f));
}

TEST_CASE("experts: afmoe: the gate of attention has a tensor of its own") {
	GgufBuilder b =
	    GgufBuilder::copy_as(Gguf::open(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/afmoe.gguf"), "afmoe");
	const Config c = config_of(b);
	CHECK((c.layers[0].output_gate && c.layers[0].gate_apart && c.embedding_scale == std::sqrt(32.f)));
	CHECK((c.layers[0].experts.n == 0 && c.layers[1].experts.choice_bias && c.layers[1].experts.shared_dim == 32));
	CHECK((c.layers[2].window && !c.layers[3].window && !c.ropes[c.layers[3].rope].rotates));
	GgufBuilder bad = b;
	bad.find("blk.2.attn_gate.weight").dims = {64, 32};
	has(refusal(bad, Code::Format), "tensor blk.2.attn_gate.weight is (32, 64), the config says (64, 32)");
	b.erase_tensor("blk.2.attn_gate.weight");
	has(refusal(b, Code::Format), "tensor blk.2.attn_gate.weight is missing");
}
