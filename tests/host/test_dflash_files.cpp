// DFlash and DSpark layers in files: what they say, which models they fit, and their errors.
#include "tests/host/draft_edits.h"
#include <algorithm>
#include <cmath>

using namespace kvrun;

namespace {

Bytes layers_of(const std::string& name) { return golden("../dflash/" + name); }

Config read(const std::string& name) {
	return read_draft_file(Gguf::parse("draft.gguf", layers_of(name)), config_of(golden(name)));
}

} // namespace

TEST_CASE("dflash: a file says how blocks are made, which states are read and which layers have windows") {
	const Config plain = read("qwen3moe"), spark = read("gpt_oss"), causal = read("gemma4");
	CHECK(draft_kind(Gguf::parse("draft.gguf", layers_of("gpt_oss"))) == DraftKind::Block);
	CHECK(plain.fusion.layers == std::vector<uint32_t>{1, 1});
	CHECK(spark.fusion.layers == std::vector<uint32_t>{1, 2, 3});
	for (const Config* c : {&plain, &spark, &causal}) {
		CHECK(c->block.size == 8);
		CHECK(c->block.mask == 7);
		CHECK(c->n_layers == 2);
		CHECK(c->target_dim == c->dim);
		CHECK(c->layers[1].qk_norm == QkNorm::Head);
	}
	CHECK((plain.block.rank == 0 && !plain.block.from_anchor && !plain.block.causal));
	CHECK((spark.block.rank == 8 && spark.block.from_anchor && !spark.block.causal));
	CHECK((causal.block.rank == 8 && !causal.block.from_anchor && causal.block.causal));
	CHECK((!plain.layers[0].window && !plain.layers[1].window));
	CHECK((spark.layers[0].window.tokens == 8 && !spark.layers[1].window));
	CHECK((causal.layers[0].window.tokens == 8 && causal.layers[1].window.tokens == 8));
	CHECK(causal.embedding_scale == doctest::Approx(std::sqrt(32.)));
	const Layer &gemma = causal.layers[1], &qwen = plain.layers[1];
	CHECK((gemma.attn_out_norm && gemma.mlp_out_norm && gemma.v_norm && gemma.v_is_k && gemma.attention_scale == 1));
	CHECK((gemma.activation == Activation::GeluTanh && gemma.output_scale != 1));
	CHECK((!qwen.attn_out_norm && !qwen.mlp_out_norm && !qwen.v_norm && !qwen.v_is_k && qwen.attention_scale == 0));
	CHECK((qwen.activation == Activation::Silu && qwen.output_scale == 1 && !qwen.sinks && spark.layers[0].sinks));
	CHECK(plain.embedding_scale == 1);
	CHECK(spark.vocab == 120);
	CHECK(spark.fusion.tokens.size() == 120);
	CHECK(std::ranges::is_sorted(spark.fusion.tokens));
}

TEST_CASE("T13: DFlash layers that are damaged, or made for another model, are refused by name") {
	const Bytes plain = layers_of("qwen3moe"), model = golden("qwen3moe");
	CHECK(said(plain, model) == "");
	CHECK(refusal(plain).find("DFlash layers, which draft for another model; give the model with -m") !=
	      std::string::npos);
	check_said(plain, golden("qwen2"), "draft.gguf: drafts for a model of 32 channels, this one has 48");
	check_said(layers_of("gpt_oss"), golden("llama"), "key dflash.target_layers has layer 3, the model has 2 layers");
	check_said(with_u32(plain, "dflash.block_size", 1), model, "key dflash.block_size is 1, expected 2 to 4096");
	check_said(with_u32(plain, "dflash.block_size", 1u << 31), model, "key dflash.block_size is 2147483648");
	check_said(with_u32(plain, "tokenizer.ggml.mask_token_id", 300), model,
	           "key tokenizer.ggml.mask_token_id is 300, the model has 300 tokens");
	check_said(renamed(plain, "tokenizer.ggml.mask_token_id", "tokenizer.ggml.mask_token_ix"), model,
	           "tokenizer.ggml.mask_token_id");
	for (const char* name :
	     {"fc.weight", "enc.output_norm.weight", "blk.1.attn_k_norm.weight", "blk.0.ffn_up.weight"}) {
		std::string other = name;
		other[1] = 'x';
		check_said(renamed(plain, name, other), model, "tensor " + std::string(name) + " is missing");
	}
	check_said(renamed(layers_of("gemma4"), "gelu_pytorch_tanh", "gelu_pytorch_tanx"), golden("gemma4"),
	           "key dflash.hidden_activation is gelu_pytorch_tanx; kvrun runs silu and gelu_pytorch_tanh");
	const Bytes spark = layers_of("gpt_oss"), target = golden("gpt_oss");
	check_said(renamed(spark, "markov_w2.weight", "markov_w3.weight"), target, "tensor markov_w2.weight is missing");
	check_said(renamed(spark, "d2t", "d2x"), target, "tensor d2x has type I64");
}
