// Config: every family, every key with a wrong type, and every hyper-parameter mutated.
#include "models/config.h"
#include "models/families.h"
#include "models/model.h"
#include "tests/support/assets.h"
#include "tests/support/config_of.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

// Every key that kvrun reads, with a valid value.
GgufBuilder with_all_keys() {
	GgufBuilder b = tiny_model();
	b.u32("llama.attention.sliding_window", 64).u32("llama.expert_count", 0);
	b.text("llama.rope.scaling.type", "yarn")
	    .f32("llama.rope.scaling.factor", 2)
	    .u32("llama.rope.scaling.original_context_length", 32);
	b.f32("llama.rope.scaling.attn_factor", 1).f32("llama.rope.scaling.yarn_attn_factor", 1);
	b.f32("llama.rope.scaling.yarn_beta_fast", 32)
	    .f32("llama.rope.scaling.yarn_beta_slow", 1)
	    .f32("llama.rope.scale_linear", 1);
	b.flag("tokenizer.ggml.add_bos_token", true).flag("tokenizer.ggml.add_space_prefix", true);
	b.u32("tokenizer.ggml.eot_token_id", 2)
	    .u32("tokenizer.ggml.eom_token_id", 2)
	    .text("tokenizer.chat_template", "{{ x }}");
	return b;
}

} // namespace

TEST_CASE("config: every family is read as written") {
	for (const std::string arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		CAPTURE(arch);
		TinyShape s;
		s.arch = arch;
		s.n_layers = 2;
		s.n_heads = 4;
		s.n_kv_heads = 2;
		s.tied = arch == "qwen3";
		const Config c = config_of(tiny_model(s));
		CHECK(c.arch == arch);
		CHECK(c.name == "tiny");
		CHECK(c.dim == 16);
		CHECK(c.hidden_dim == 32);
		CHECK(c.head_dim == 8);
		CHECK(c.n_layers == 2);
		CHECK(c.layers.size() == 2);
		CHECK(c.n_heads == 4);
		CHECK(c.n_kv_heads == 2);
		CHECK(c.vocab == tiny_spm_tokens().size());
		CHECK(c.max_seq == 64);
		CHECK(c.norm_eps == 1e-5f);
		CHECK(c.ropes[0].dim == 8);
		CHECK(c.ropes[0].theta == 10000);
		CHECK(c.ropes[0].neox == (c.arch != "llama"));
		CHECK(c.tied_embedding == s.tied);
		CHECK(c.layers[0].qkv_bias == (c.arch == "qwen2"));
		CHECK((c.layers[0].qk_norm == QkNorm::Head) == (c.arch == "qwen3"));
		CHECK(c.layers[0].fused_qkv == (c.arch == "phi3"));
		CHECK(c.layers[0].fused_gate_up == (c.arch == "phi3"));
	}
}

TEST_CASE("config: what a file may leave out") {
	GgufBuilder b = tiny_model(); // dim 16, 2 heads of 8, 1 kv head
	for (const char* k : {"llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count",
	                      "llama.rope.freq_base", "llama.vocab_size", "general.name"})
		b.erase(k);
	const Config c = config_of(b);
	CHECK(c.head_dim == 8);
	CHECK(c.ropes[0].dim == 8);
	CHECK(c.ropes[0].theta == 10000);
	for (const char* k :
	     {"general.architecture", "llama.embedding_length", "llama.block_count", "llama.feed_forward_length",
	      "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon",
	      "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores"}) {
		b = tiny_model();
		b.erase(k);
		has(refusal(b), fmt::format("key {} is missing", k));
	}
	TinyShape equal;
	equal.n_kv_heads = 2;
	b = tiny_model(equal);
	b.erase("llama.attention.head_count_kv");
	CHECK(config_of(b).n_kv_heads == 2);
}

TEST_CASE("config: sizes that differ between layers") {
	TinyShape s;
	s.n_layers = 2, s.n_kv_heads = 2;
	GgufBuilder b = tiny_model(s);
	const auto hidden = [&](std::vector<int32_t> v) {
		b.numbers<int32_t>("llama.feed_forward_length", GgufType::I32, v);
	};
	hidden({32, 32});
	CHECK(config_of(b).hidden_dim == 32);
	hidden({32, 48});
	has(refusal(b), "tensor blk.1.ffn_gate.weight is (32, 16), the config says (48, 16)");
	for (const char* name : {"ffn_gate", "ffn_up"}) {
		b.erase_tensor(fmt::format("blk.1.{}.weight", name));
		b.tensor_f32(fmt::format("blk.1.{}.weight", name), {16, 48}, std::vector<float>(16 * 48));
	}
	b.erase_tensor("blk.1.ffn_down.weight");
	b.tensor_f32("blk.1.ffn_down.weight", {48, 16}, std::vector<float>(16 * 48));
	const Config c = config_of(b);
	CHECK(c.hidden_dim == 32);
	CHECK(c.layers[0].hidden_dim == 32);
	CHECK(c.layers[1].hidden_dim == 48);
	hidden({32, 48, 32});
	has(refusal(b), "key llama.feed_forward_length has 3 elements, the model has 2 layers; the file is damaged");
	hidden({32, 0});
	has(refusal(b), "key llama.feed_forward_length is 0; the file is damaged");
	hidden({32, -1});
	has(refusal(b), "key llama.feed_forward_length is -1 for a layer; the file is damaged");
	b = tiny_model(s);
	b.numbers<int32_t>("llama.attention.head_count_kv", GgufType::I32, {2, 1});
	Code code{};
	has(refusal(b, &code), "layers without a window have 2 heads, 2 key/value heads of 8 channels, and 2, 1 of 8");
	CHECK(code == Code::Unsupported);
}

TEST_CASE("T07: every key kvrun reads, with every other type") {
	const GgufBuilder good = with_all_keys();
	REQUIRE(refusal(good) == "");
	const std::vector<std::pair<GgufType, std::string>> values = {
	    {GgufType::U8, std::string(1, '\1')},
	    {GgufType::I8, std::string(1, '\1')},
	    {GgufType::U16, GgufBuilder::raw(uint16_t(1))},
	    {GgufType::I16, GgufBuilder::raw(int16_t(1))},
	    {GgufType::U32, GgufBuilder::raw(1u)},
	    {GgufType::I32, GgufBuilder::raw(1)},
	    {GgufType::F32, GgufBuilder::raw(1.f)},
	    {GgufType::Bool, std::string(1, '\1')},
	    {GgufType::String, GgufBuilder::string("x")},
	    {GgufType::U64, GgufBuilder::raw(uint64_t(1))},
	    {GgufType::I64, GgufBuilder::raw(int64_t(1))},
	    {GgufType::F64, GgufBuilder::raw(1.)},
	    {GgufType::Array,
	     GgufBuilder::raw(uint32_t(GgufType::F64)) + GgufBuilder::raw(uint64_t(1)) + GgufBuilder::raw(1.)}};
	auto family = [](GgufType t) { // types that are read in the same way
		switch (t) {
		case GgufType::U8:
		case GgufType::U16:
		case GgufType::U32:
		case GgufType::U64: return 1;
		case GgufType::F32:
		case GgufType::F64: return 2;
		default: return 10 + int(t);
		}
	};
	size_t tried = 0;
	for (const GgufBuilder::Key& k : good.keys) {
		for (const auto& typed : values) { // clang 14 does not capture structured bindings
			const GgufType type = typed.first;
			if (family(type) == family(GgufType(k.type)) && type != GgufType::Array) continue;
			GgufBuilder b = good;
			b.set(k.name, type, typed.second);
			const std::string said = refusal(b);
			INFO(k.name, " as ", gguf_type_name(type), ": ", said);
			CHECK(said.find(fmt::format("key {} is {}", k.name,
			                            type == GgufType::Array ? "an array of f64" : gguf_type_name(type))) !=
			      said.npos);
			++tried;
		}
	}
	CHECK(tried > 300);
}

TEST_CASE("T12: other architectures are refused by name, with the list of those kvrun runs") {
	for (const char* arch : {"mpt", "grok", "LLAMA", "", "llama\n"}) {
		GgufBuilder b = tiny_model();
		b.text("general.architecture", arch);
		Code code{};
		const std::string said = refusal(b, &code);
		has(said, "kvrun runs llama qwen2 qwen3 phi3 ");
		CHECK(code == Code::Unsupported);
	}
	GgufBuilder b = tiny_model();
	b.text("general.architecture", "bloom");
	CHECK(refusal(b) == "test.gguf: architecture is bloom; kvrun runs " + family_names());
	TinyShape dense;
	dense.arch = "qwen3";
	b = tiny_model(dense);
	b.u32("qwen3.expert_count", 8);
	has(refusal(b), "is a mixture of 8 experts; kvrun runs dense models of qwen3");
}

TEST_CASE("T13: every hyper-parameter mutated: whatever contradicts the tensors is refused") {
	for (const char* arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		TinyShape s;
		s.arch = arch;
		s.n_layers = 2;
		s.n_heads = 4;
		s.n_kv_heads = 2;
		const GgufBuilder good = tiny_model(s);
		REQUIRE(refusal(good) == "");
		auto key = [&](const char* k) { return fmt::format("{}.{}", arch, k); };
		for (const auto& [name, value] : {std::pair<const char*, uint32_t>{"embedding_length", 16},
		                                  {"block_count", 2},
		                                  {"feed_forward_length", 32},
		                                  {"attention.head_count", 4},
		                                  {"attention.head_count_kv", 2},
		                                  {"attention.key_length", 8},
		                                  {"attention.value_length", 8},
		                                  {"vocab_size", 267}}) {
			for (uint32_t bad : {0u, 1u, value - 1, value + 1, value * 2, value + 8, 0x7fffffffu, 0x80000000u,
			                     UINT32_MAX - 1, UINT32_MAX}) {
				if (bad == value) continue;
				GgufBuilder b = good;
				b.u32(key(name), bad);
				const std::string shown = fmt::format("{} = {}", key(name), bad);
				CAPTURE(shown);
				CHECK(refusal(b) != "");
			}
			GgufBuilder b = good;
			b.set(key(name), GgufType::U64, b.raw(uint64_t(1) << 32 | value)); // its low half is valid
			has(refusal(b), "at most 4294967295");
		}
		for (uint32_t bad : {0u, 1u, 7u, 9u, 16u, UINT32_MAX}) {
			GgufBuilder b = good;
			b.u32(key("rope.dimension_count"), bad);
			has(refusal(b), fmt::format("rope.dimension_count is {}, heads have 8 channels", bad));
		}
		GgufBuilder b = good;
		b.u32(key("rope.dimension_count"), 6);
		CHECK((refusal(b) == "") == (std::string(arch) == "phi3")); // the only family that rotates part of a head
		b = good;
		b.u32(key("context_length"), 0);
		has(refusal(b), "context_length is 0");
		b.set(key("context_length"), GgufType::U64, b.raw(uint64_t(1) << 32));
		has(refusal(b), "context_length is 4294967296");
		b.u32(key("context_length"), UINT32_MAX);
		CHECK(config_of(b).max_seq == UINT32_MAX);
		for (float bad : {NAN, INFINITY, -INFINITY, -1.f, 1.f, 1e30f}) {
			b = good;
			b.f32(key("attention.layer_norm_rms_epsilon"), bad);
			CHECK(refusal(b) != "");
			b = good;
			b.f32(key("rope.freq_base"), bad);
			CHECK((refusal(b) == "") == (bad == 1e30f));
		}
	}
}

TEST_CASE("T13: heads that do not divide, and heads no backend can do") {
	TinyShape s;
	s.n_heads = 3;
	s.n_kv_heads = 2;
	has(refusal(tiny_model(s)), "3 heads cannot share 2 key/value heads evenly");
	s = {};
	s.head_dim = 12;
	has(refusal(tiny_model(s)), "heads have 12 channels; kvrun runs multiples of 8 up to 512");
	s.head_dim = 520;
	has(refusal(tiny_model(s)), "heads have 520 channels");
	GgufBuilder b = tiny_model();
	b.erase("llama.attention.key_length").u32("llama.attention.head_count", 3);
	has(refusal(b), "16 channels do not divide into 3 heads");
	b = tiny_model();
	std::vector<std::string> tokens = tiny_spm_tokens();
	tokens.push_back("one more");
	add_spm(b, tokens);
	has(refusal(b), "the tokenizer has 268 tokens, the embedding 267 rows");
}

TEST_CASE("T14: a missing tensor is refused, whichever it is") {
	for (const char* arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		TinyShape s;
		s.arch = arch;
		s.n_layers = 2;
		const GgufBuilder good = tiny_model(s);
		for (const GgufBuilder::Tensor& t : good.tensors) {
			GgufBuilder b = good;
			b.erase_tensor(t.name);
			const std::string said = refusal(b);
			if (t.name == "output.weight")
				CHECK(said == ""); // then it is tied to the embedding
			else
				has(said, fmt::format("tensor {} is missing", t.name));
		}
		for (const GgufBuilder::Tensor& t : good.tensors) { // and one of the wrong shape
			GgufBuilder b = good;
			GgufBuilder::Tensor& m = b.find(t.name);
			m.dims.back() += 1;
			m.data += std::string(m.data.size(), '\0');
			CHECK(refusal(b) != "");
		}
	}
}

TEST_CASE("config: softcaps and windows, of the file or of the family") {
	TinyShape s;
	s.arch = "gemma2";
	GgufBuilder b = tiny_model(s);
	for (const char* norm : {"blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"})
		b.tensor_f32(norm, {16}, std::vector<float>(16, 1));
	Config c = config_of(b);
	CHECK(c.layers[0].score_softcap == 50);
	CHECK(c.logit_softcap == 30);
	CHECK(c.layers[0].window == Window{4096});
	b.f32("gemma2.attn_logit_softcapping", 20).f32("gemma2.final_logit_softcapping", 0);
	b.u32("gemma2.attention.sliding_window", 8);
	c = config_of(b);
	CHECK(c.layers[0].score_softcap == 20);
	CHECK(c.logit_softcap == 0); // no cap
	CHECK(c.layers[0].window == Window{8});
	for (const float bad : {-1.f, NAN, INFINITY}) {
		b.f32("gemma2.attn_logit_softcapping", bad);
		has(refusal(b), "gemma2.attn_logit_softcapping");
	}
	c = config_of(tiny_model());
	CHECK((c.layers[0].score_softcap == 0 && c.logit_softcap == 0 && !c.layers[0].window));
}

TEST_CASE("config: norms of heads after RoPE") {
	TinyShape s;
	s.arch = "hunyuan-dense";
	GgufBuilder b = tiny_model(s);
	Code code{};
	has(refusal(b, &code), "tensor blk.0.attn_q_norm.weight is missing");
	CHECK(code == Code::Format);
	for (const char* norm : {"blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"})
		b.tensor_f32(norm, {8}, std::vector<float>(8, 1));
	CHECK(config_of(b).layers[0].qk_norm == QkNorm::HeadLast);
	b.text("hunyuan-dense.rope.scaling.type", "linear").f32("hunyuan-dense.rope.scaling.factor", 4);
	CHECK(config_of(b).ropes[0].factor == 4);
	b.text("hunyuan-dense.rope.scaling.type", "yarn");
	has(refusal(b, &code), "key hunyuan-dense.rope.scaling.type is yarn; kvrun runs hunyuan-dense without a factor of "
	                       "cos and sin");
	CHECK(code == Code::Unsupported);
}

TEST_CASE("T14: an extra tensor is taken, unless it would change the result") {
	GgufBuilder b = tiny_model();
	b.tensor_f32("extra.weight", {4}, {1, 2, 3, 4});
	CHECK(refusal(b) == "");
	for (const char* name :
	     {"output.bias", "blk.0.ffn_gate.bias", "blk.0.attn_q_norm.weight", "blk.0.post_attention_norm.weight"}) {
		b = tiny_model();
		b.tensor_f32(name, {16}, std::vector<float>(16));
		Code code{};
		has(refusal(b, &code), fmt::format("tensor {} belongs to a variant of llama that kvrun does not run", name));
		CHECK(code == Code::Unsupported);
	}
	b = tiny_model(); // biases that any llama model may have
	b.tensor_f32("blk.0.attn_output.bias", {16}, std::vector<float>(16));
	CHECK(refusal(b) == "");
	b = tiny_model(); // all matrices of an MLP have one, or none
	b.tensor_f32("blk.0.ffn_down.bias", {16}, std::vector<float>(16));
	has(refusal(b), "tensor blk.0.ffn_gate.bias is missing");
	b = tiny_model();
	b.tensor_f32("blk.1.attn_q.weight", {4}, {1, 2, 3, 4});
	has(refusal(b), "key llama.block_count is 1, and the file has tensors of 2 layers");
	b = tiny_model(); // one alone is no other number of layers
	b.tensor_f32("blk.7.attn_q.weight", {4}, {1, 2, 3, 4});
	has(refusal(b), "tensor blk.7.attn_q.weight belongs to a layer beyond the 1 the config says");
	for (const uint32_t said : {1, 3}) { // of a model with two layers
		TinyShape two;
		two.n_layers = 2;
		b = tiny_model(two);
		b.u32("llama.block_count", said);
		has(refusal(b), fmt::format("key llama.block_count is {}, and the file has tensors of 2 layers", said));
	}
	b = tiny_model(); // llama with q, k, v biases is supported
	b.tensor_f32("blk.0.attn_q.bias", {16}, std::vector<float>(16))
	    .tensor_f32("blk.0.attn_k.bias", {8}, std::vector<float>(8));
	has(refusal(b), "tensor blk.0.attn_v.bias is missing");
	b.tensor_f32("blk.0.attn_v.bias", {8}, std::vector<float>(8));
	CHECK(config_of(b).layers[0].qkv_bias);
}

// ---- RoPE

TEST_CASE("config: files that need more than the family's row are refused by name") {
	const auto golden = [](const char* name, const char* arch) {
		return GgufBuilder::copy_as(Gguf::open(fmt::format("{}/tests/golden/tiny/{}.gguf", KVRUN_SOURCE_DIR, name)),
		                            arch);
	};
	GgufBuilder b;
	// A bias of the choice, by both names.
	b = golden("hy_v3", "hy_v3");
	CHECK(refusal(b) == "");
	b.tensor_f32("blk.1.exp_probs_b.bias", {6}, std::vector<float>(6));
	has(refusal(b), "tensor blk.1.exp_probs_b.bias belongs to a variant of hy_v3 that kvrun does not run");
}

TEST_CASE("config: the tiny checkpoints of every family open") {
	const auto folder = std::filesystem::path(KVRUN_SOURCE_DIR) / "tests/golden/tiny";
	size_t n = 0;
	for (const auto& entry : std::filesystem::directory_iterator(folder)) {
		if (entry.path().extension() != ".gguf") continue;
		const std::string name = entry.path().stem().string();
		CAPTURE(name);
		const Model m = open_model(entry.path().string());
		const Config& c = m.config;
		CHECK(m.tokenizer.vocab() == c.vocab);
		CHECK(rope_inv_freq(c.ropes[0], c.max_seq).size() == c.ropes[0].dim / 2);
		if (name == "llama_tied") CHECK(c.tied_embedding);
		if (name == "llama") CHECK(!c.tied_embedding);
		if (name == "qwen2_yarn") CHECK(c.ropes[0].scaling == RopeScaling::Yarn);
		if (name == "llama_linear") CHECK(c.ropes[0].scaling == RopeScaling::Linear);
		if (name == "phi3_longrope") CHECK(c.ropes[0].scaling == RopeScaling::LongRope);
		if (name == "phi3_partial") CHECK(c.ropes[0].dim * 4 == c.head_dim * 3);
		if (name == "llama3_rope") CHECK(c.ropes[0].freqs.size() == c.ropes[0].dim / 2);
		if (name == "qwen3") CHECK(c.head_dim * c.n_heads != c.dim);
		++n;
	}
	CHECK(n >= 20);
}
