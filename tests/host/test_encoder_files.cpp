// Text encoders and rerankers in files: what they say, and their errors.
#include "models/chat/rank.h"
#include "models/text_encoder.h"
#include "tests/host/file_edits.h"
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;

namespace {

Bytes file_of(const std::string& name) { return golden("../encoder/" + name); }
Config read(const std::string& name) { return config_of(file_of(name)); }

nlohmann::json expected(const std::string& name) {
	std::ifstream in(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/encoder/" + name + ".json");
	return nlohmann::json::parse(in);
}

} // namespace

TEST_CASE("encoder: a file says which layers have windows, what rows are made of, and what follows") {
	for (const char* name : {"bert", "xlmr", "nomic_bert", "nomic_bert_moe", "jina_v3"}) {
		const Config c = read(name);
		CAPTURE(name);
		const Layer& l = c.layers[1];
		CHECK((c.encodes && c.norm == NormKind::LayerBiased && c.final_norm.empty() && c.text_input.normed));
		CHECK((l.norms_sum && !l.attn_norm && l.attn_out_norm && l.mlp_out_norm && l.mlp_input == MlpInput::Raw));
		CHECK((c.text_input.positions > 0) == !c.ropes[0].rotates);
		CHECK(l.mlp == (std::string_view(name) == "nomic_bert" ? MlpKind::Gated : MlpKind::Plain));
		CHECK(l.activation == (std::string_view(name) == "nomic_bert" ? Activation::Silu : Activation::Gelu));
		CHECK(c.text_head.pooling == (std::string_view(name) == "bert" ? Pooling::First : Pooling::Mean));
		CHECK((c.text_head.labels == 0 && vector_dim(c) == c.dim));
	}
	CHECK(read("bert").text_input.types == 2);
	for (const char* name : {"jina_v2", "jina_v2_code", "jina_v2_plain"}) {
		const Config c = read(name);
		CAPTURE(name);
		const bool code = std::string_view(name) == "jina_v2_code", plain = std::string_view(name) == "jina_v2_plain";
		const Layer& l = c.layers[1];
		CHECK((c.encodes && l.alibi && !c.ropes[0].rotates && !c.text_input.positions && c.text_input.types == 2));
		CHECK((l.sums_twice == code && l.up_first == code && l.qk_norm_bias == code));
		CHECK(l.qk_norm == (code ? QkNorm::Row : QkNorm::None));
		CHECK(l.mlp == (plain ? MlpKind::Plain : MlpKind::Gated));
		CHECK((l.fused_gate_up == !plain && l.in_bias == plain && l.mlp_bias && l.activation == Activation::Gelu));
	}
	const Config moe = read("nomic_bert_moe"), modern = read("modernbert"), gemma = read("gemma_embedding");
	for (uint32_t l = 0; l < 4; ++l) CHECK(moe.layers[l].experts.n == (l % 2 ? 4 : 0));
	CHECK((moe.layers[1].experts.used == 2 && !moe.layers[1].experts.normalise));
	for (uint32_t l = 0; l < modern.n_layers; ++l) {
		CHECK(modern.layers[l].window.tokens == (l % 3 ? 16 : 0));
		CHECK(modern.layers[l].rope == (l % 3 ? 1 : 0));
		CHECK(modern.layers[l].attn_norm == (l > 0));
	}
	CHECK((modern.encodes && modern.final_norm == "output_norm" && modern.layers[0].activation == Activation::Gelu));
	CHECK((gemma.encodes && gemma.layers[0].window.tokens == 16 && !gemma.layers[5].window && gemma.tied_embedding));
	CHECK((gemma.text_head.dense[0] == 48 && gemma.text_head.dense[1] == 32 && vector_dim(gemma) == 32));
	const Config two = read("gemma_embedding2");
	CHECK((two.encodes && two.layer_input_dim == 24 && two.inputs_projected && vector_dim(two) == 48));
	CHECK((two.text_head.dense_is_output && two.text_head.dense[1] == 0));
	for (uint32_t l = 0; l < 6; ++l) {
		const Layer& layer = two.layers[l];
		CHECK((layer.window.tokens == (l < 5 ? 16 : 0) && layer.head_dim == (l < 5 ? 16 : 32)));
		CHECK((layer.n_kv_heads == (l < 5 ? 2 : 1) && layer.v_norm && layer.output_scale != 1));
	}
	CHECK((read("llama_embed").encodes && read("eurobert").encodes && read("neobert").final_norm == "enc.output_norm"));
	const Config qwen = read("qwen3_embedding"), yes = read("qwen3_reranker");
	CHECK((!qwen.encodes && qwen.text_head.pooling == Pooling::Last && qwen.text_head.labels == 0));
	CHECK((!yes.encodes && yes.text_head.labels == 2 && yes.text_head.softmax));
	CHECK(yes.text_head.label_pooling == Pooling::Last);
	const TextHead bert = read("bert_reranker").text_head, xlmr = read("xlmr_reranker").text_head,
	               mean = read("modernbert_reranker").text_head;
	CHECK((bert.labels == 1 && !bert.hidden && bert.bias && bert.label_pooling == Pooling::First && !bert.softmax));
	CHECK((xlmr.labels == 1 && xlmr.hidden && xlmr.hidden_bias && !xlmr.normed));
	CHECK(xlmr.activation == Activation::None); // tanh
	CHECK((mean.hidden && mean.normed && mean.activation == Activation::Gelu && mean.label_pooling == Pooling::Mean));
}

TEST_CASE("encoder: any file may say that tokens see each other, or only earlier ones") {
	CHECK(!config_of(golden("qwen3")).encodes);
	Bytes b = file_of("eurobert");
	const std::string key = "eurobert.attention.causal";
	CHECK(config_of(b).encodes);
	b[place_of(b, key) + key.size() + 4] = std::byte(1);
	CHECK(!config_of(b).encodes);
}

TEST_CASE("encoder: slopes of ALiBi are powers of two, between which those of further heads lie") {
	const auto close = [](uint32_t n, std::initializer_list<double> want) {
		const std::vector<float> got = alibi_slopes(n);
		REQUIRE(got.size() == n);
		size_t i = 0;
		for (const double w : want) CHECK(double(got[i++]) == doctest::Approx(w));
	};
	close(8, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
	close(1, {1. / 256});
	close(12, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.70710678, 0.35355339, 0.17677670,
	           0.08838835});
	close(3, {1. / 16, 1. / 256, 0.25});
}

TEST_CASE("encoder: texts have the tokens of transformers") {
	// Control tokens that a text writes are text; where transformers and the sentencepiece package differ, the package
	// is followed.
	for (const char* name : {"bert", "xlmr", "modernbert"}) {
		const Tokenizer t(Gguf::parse("test.gguf", file_of(name)));
		auto j = expected(std::string(name) + ".tokens");
		for (const char* own : {"written", "plain"})
			for (const auto& other : j.value(own, nlohmann::json::array()))
				j["ids"][other["string"].get<size_t>()] = other["ids"];
		for (size_t i = 0; i < j["strings"].size(); ++i) {
			const std::string text = j["strings"][i];
			CAPTURE(text);
			CHECK(t.encode(text, {.eos = true}) == j["ids"][i].get<std::vector<uint32_t>>());
		}
	}
}

TEST_CASE("encoder: pairs are tokenized as transformers does, with where the document begins") {
	for (const char* name : {"bert_reranker", "xlmr_reranker", "modernbert_reranker", "qwen3_reranker"}) {
		const Gguf g = Gguf::parse("test.gguf", file_of(name));
		const Tokenizer t(g);
		const RankPrompt prompt(g);
		for (const auto& p : expected(name)["pairs"]) {
			const TextPair got = prompt.encode(t, p["query"].get<std::string>(), p["document"].get<std::string>());
			CAPTURE(name);
			CHECK(got.tokens == p["ids"].get<std::vector<uint32_t>>());
			if (!p.contains("types")) continue;
			const auto types = p["types"].get<std::vector<uint32_t>>();
			for (size_t i = 0; i < types.size(); ++i) CHECK((i >= got.second) == (types[i] == 1));
		}
	}
}

TEST_CASE("T13: encoders that are damaged, or of kinds that kvrun does not run, are refused by name") {
	const Bytes bert = file_of("bert"), modern = file_of("modernbert"), xlmr = file_of("xlmr_reranker"),
	            gemma = file_of("gemma_embedding");
	CHECK(refusal(bert) == "");
	check_refused(with_u32(bert, "bert.context_length", 65), "tensor position_embd.weight has 64 rows, key "
	                                                         "bert.context_length is 65");
	check_refused(with_u32(bert, "bert.pooling_type", 5), "key bert.pooling_type is 5; kvrun knows 0 to 4");
	const Bytes two = file_of("gemma_embedding2");
	const std::string length("\r\0\0\0\0\0\0\0", 8); // of the name, else another tensor's ends so
	check_refused(renamed(two, length + "output.weight", length + "outpux.weight"), "tensor output.weight is missing");
	check_refused(renamed(two, "per_layer_proj_norm", "per_layer_proj_norx"), "tensor per_layer_proj_norm.weight is");
	check_refused(renamed(modern, "gelu", "gexu"), "key modern-bert.hidden_activation is gexu");
	for (const char* name : {"blk.0.attn_output_norm.weight", "blk.1.layer_output_norm.bias", "blk.0.attn_q.weight"}) {
		std::string other = name;
		other[4] = '9';
		check_refused(renamed(bert, name, other), "tensor " + std::string(name) + " is missing");
	}
	check_refused(renamed(modern, "blk.1.attn_norm.weight", "blk.1.attn_norx.weight"),
	              "tensor blk.1.attn_norm.weight is missing");
	check_refused(renamed(xlmr, "cls.weight", "clx.weight"), "tensor cls.weight is missing beside cls.bias");
	check_refused(renamed(xlmr, "cls.output.weight", "clx.output.weight"), "tensor cls.output.weight is missing");
	const Bytes jina = file_of("jina_v2_code");
	for (const auto& [file, arch] : {std::pair{jina, "jina-bert-v2"}, {two, "gemma-embedding2"}}) {
		Bytes causal = file;
		const std::string key = fmt::format("{}.attention.causal", arch);
		causal[place_of(causal, key) + key.size() + 4] = std::byte(1);
		check_refused(causal, fmt::format("key {} is true; kvrun runs {} only as an encoder", key, arch));
	}
	for (const char* name : {"blk.1.attn_norm_2.bias", "blk.1.attn_k_norm.bias", "blk.0.attn_k_norm.weight"}) {
		std::string other = name;
		other[4] = '9';
		check_refused(renamed(jina, name, other), "tensor " + std::string(name) + " is missing");
	}
	check_refused(renamed(gemma, "dense_2.weight", "dense_9.weight"), "tensor dense_3.weight is (32, 48)");
}
