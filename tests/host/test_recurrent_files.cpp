// Recurrent layers in files: keys and tensors, and their errors.
#include "engine/run/memory_plan.h"
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

TEST_CASE("T13: sizes and tensors of recurrent layers that are wrong are refused") {
	struct Bad {
		const char* key;
		uint32_t value;
		const char* said;
	};
	const Bytes good = golden("qwen35");
	CHECK(refusal(good) == "");
	for (const Bad& bad :
	     {Bad{"ssm.conv_kernel", 1, "key qwen35.ssm.conv_kernel is 1; kvrun runs 2 to 8"},
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
	for (const char* tensor : {"ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight",
	                           "ssm_beta.weight", "ssm_alpha.weight", "attn_gate.weight", "attn_qkv.weight"}) {
		const std::string name = std::string("blk.1.") + tensor;
		CAPTURE(name);
		std::string other = name;
		other[6] = 'x';
		CHECK(refusal(renamed(good, name, other)).find("tensor " + name + " is missing") != std::string::npos);
	}
	CHECK(refusal(renamed(golden("qwen3next"), "blk.0.ssm_ba.weight", "blk.0.ssm_xx.weight"))
	          .find("tensor blk.0.ssm_ba.weight is missing") != std::string::npos);
}

TEST_CASE("recurrent layers: plans count states, and tokens of the layers that attend") {
	const Config c = parse_synth("qwen3.5-35b-a3b:q4_k").config;
	const CacheLayers layers(c);
	CHECK(layers.main_shape().n_layers == 10);
	// 30 layers: 32 heads of 128 x 128, and 3 rows of 8192 channels, f32
	CHECK(layers.states().bytes() == size_t(30) * 4 * (32 * 128 * 128 + 3 * 8192));
	const ModelMemory m = model_memory(c, 0, 512);
	CHECK(m.state_bytes == 2 * layers.states().bytes());
	const MemoryAccount a = memory_account(m, uint64_t(24) << 30, 4096);
	CHECK(a.states == m.state_bytes);
	CHECK(a.weights + a.window + a.states + a.activations + a.prompt + a.reserve + a.cache == a.total);
}
