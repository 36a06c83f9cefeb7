// Synthetic models: valid GGUF files of the named shape, the same bytes however they are read, with weights of a size
// that keeps a model's activations in range.
#include "engine/core/block_quant.h"
#include "models/model.h"
#include "models/prediction.h"
#include "models/synth/synth_file.h"
#include "tests/support/errors.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <set>

using namespace kvrun;

namespace {

std::vector<std::byte> all_bytes(const SynthFile& f) {
	std::vector<std::byte> b(f.bytes());
	f.read_at(0, b);
	return b;
}

std::string error_of_name(const char* text) {
	Code code = Code::Invalid;
	const std::string what = error_of([&] { parse_synth(text); }, &code);
	CHECK(code == Code::Invalid);
	return what;
}

const std::string kSmall = "tinyllama-1.1b,dim=256,hidden=512,layers=2,heads=4,kv_heads=2,vocab=1024";

} // namespace

TEST_CASE("synth: every shape in the table is a model kvrun runs") {
	std::set<std::pair<SynthVocab, uint32_t>> read; // vocabularies of a kind and size are nearly the same
	for (const std::string& name : synth_names()) {
		INFO(name);
		const std::string small = name + ",layers=1:q4_k";
		const SynthSpec spec = parse_synth(small);
		if (!read.insert({spec.tokenizer, spec.config.vocab >> 16}).second) {
			const Config c = read_config(Gguf::open("synth:" + name + ",layers=1,vocab=2048:q4_k"));
			CHECK((c.n_layers == 1 && c.vocab == 2048));
			continue;
		}
		const Model m = open_model("synth:" + small);
		CHECK(m.config.n_layers == 1);
		CHECK(m.tokenizer.vocab() == m.config.vocab);
		const std::string text = "Some words, 12 + 30 = 42; batako."; // any text can be decoded again
		CHECK(m.tokenizer.decode(m.tokenizer.encode(text, {.bos = false})).ends_with(text));
	}
	std::vector<std::string> names = synth_names();
	std::ranges::sort(names);
	CHECK(std::ranges::adjacent_find(names) == names.end());
	const Config dsa = open_model("synth:glm-5.2,layers=12,experts=16:q4_k").config;
	const uint32_t owners[] = {0, 1, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10};
	for (uint32_t l = 0; l < dsa.n_layers; ++l)
		CHECK((dsa.layers[l].indexed && dsa.layers[l].index_layer == owners[l]));
	const Model hyper = open_model("synth:qwen4exp-a3b,layers=4:q4_k");
	CHECK((hyper.config.streams.hyper() && hyper.config.ngrams.layer == 1 && hyper.config.final_norm.empty()));
	CHECK(hyper.file.find_tensor("output_norm.weight") == nullptr); // llama.cpp refuses tensors it does not know
	const Config other = open_model("synth:mixtral-8x7b,layers=2,arch=arctic:q4_k").config;
	CHECK((other.layers[0].experts.at_input && other.layers[0].hidden_dim == other.dim));
	CHECK_THROWS_WITH_AS(open_model("synth:kimi-linear-48b-a3b,layers=4,arch=kimi-k3:q4_k"),
	                     doctest::Contains("kimi-k3 has attention residuals, which no shape has"), Error);
	CHECK(open_model("synth:llama-3.1-8b:q4_k").file.tensor_bytes() > (uint64_t(4) << 30));
	const Config c = open_model("synth:glm-4.5-air,layers=3,experts=16,used=4:q4_k").config;
	CHECK(c.layers[0].experts.n == 0);
	CHECK(c.layers[2].experts.n == 16);
	CHECK(c.layers[2].experts.used == 4);
	CHECK(c.layers[2].experts.hidden_dim == 1408);
	CHECK(c.layers[2].experts.gating == Gating::Sigmoid);
	CHECK(c.layers[2].experts.choice_bias);
}

TEST_CASE("synth: mtp=1 adds a prediction layer, to families whose layers kvrun runs") {
	for (const char* name : {"qwen3.5-9b", "qwen3.5-35b-a3b", "qwen3-next-80b-a3b", "glm-4.5-air", "deepseek-r1"}) {
		CAPTURE(name);
		const Model m = open_model(std::string("synth:") + name + ",layers=5,mtp=1:q4_k");
		CHECK(m.config.n_layers == 5);
		const Config p = read_prediction(m.file, m.config);
		CHECK(p.prediction.block == 5);
		CHECK(p.n_layers == 1);
		CHECK(attends(p.layers[0]));
		CHECK(p.prediction.own_norm);
		CHECK(!p.prediction.own_head);
		CHECK((p.layers[0].experts.n != 0) == (std::string_view(name) != "qwen3.5-9b"));
	}
	CHECK(error_of_name("llama-3.1-8b,mtp=1:q4_k").find("no prediction layer") != std::string::npos);
}

TEST_CASE("synth: any part of the file has the bytes of the whole") {
	for (const std::string& type : synth_types()) {
		INFO(type);
		const SynthFile f(parse_synth(kSmall + ":" + type));
		const std::vector<std::byte> all = all_bytes(f);
		uint64_t at = 1;
		for (int i = 0; i < 300; ++i) { // pieces of 1 to 1000 bytes all over the file
			at = at * 2862933555777941757u + 3037000493u;
			const uint64_t from = at >> 20 & 0xffffffff, n = 1 + (at >> 54);
			const size_t begin = from % (all.size() - n);
			std::vector<std::byte> piece(n);
			f.read_at(begin, piece);
			REQUIRE(std::equal(piece.begin(), piece.end(), all.begin() + ptrdiff_t(begin)));
		}
		const Gguf g = Gguf::parse("synth", all); // a valid file, tensors without gaps
		CHECK(g.tensors().size() == 2 * 9 + 3);
		CHECK(read_config(g).dim == 256);
	}
}

TEST_CASE("synth: elements have mean 0 and the deviation 1 / sqrt(cols), in every type") {
	for (const std::string& type : synth_types()) {
		const Gguf g = Gguf::open("synth:" + kSmall + ":" + type);
		const GgufTensor* t = g.find_tensor("blk.1.ffn_gate.weight");
		REQUIRE(t);
		std::vector<std::byte> bytes(t->bytes);
		g.read(*t, 0, bytes);
		std::vector<float> x(t->rows() * t->cols());
		dequantise_row(t->type, bytes.data(), x.data(), x.size());
		double sum = 0, squares = 0;
		for (const float v : x) sum += double(v), squares += double(v) * double(v);
		const double n = double(x.size()), want = 1 / std::sqrt(double(t->cols()));
		CHECK_MESSAGE(std::sqrt(squares / n) == doctest::Approx(want).epsilon(0.03), type);
		CHECK_MESSAGE(std::abs(sum / n) < 0.12 * want, type); // Q4_0 and Q6_K have no code in the middle
	}
}

TEST_CASE("synth: a seed is a model; another seed is another") {
	const auto bytes = [](const std::string& seed) {
		return all_bytes(SynthFile(parse_synth(kSmall + ":q8_0" + seed)));
	};
	CHECK(bytes("") == bytes(":1"));
	CHECK(bytes(":2") != bytes(":1"));
}

TEST_CASE("synth: what is wrong in a name is said") {
	CHECK(error_of_name("llama-3.1-8b").find("NAME[,key=value,...]:TYPE[:SEED]") != std::string::npos);
	CHECK(error_of_name("llama-9:q4_k").find("no shape of the name 'llama-9'; there are llama-2-7b") !=
	      std::string::npos);
	CHECK(error_of_name("qwen3-8b:q9").find("'q9', expected one of f32 f16") != std::string::npos);
	CHECK(error_of_name("qwen3-8b,layer=2:f16").find("no key 'layer'") != std::string::npos);
	CHECK(error_of_name("qwen3-8b,layers=0:f16").find("layers of a synthetic model is '0'") != std::string::npos);
	CHECK(error_of_name("qwen3-8b,kv_heads=7:f16").find("32 heads of a synthetic model do not divide into 7") !=
	      std::string::npos);
	CHECK(error_of_name("qwen3-8b:f16:x").find("seed of a synthetic model is 'x'") != std::string::npos);
	CHECK(error_of_name("qwen3-8b,experts=8:f16").find("qwen3 has no experts") != std::string::npos);
	CHECK(error_of_name("mistral-7b,experts=8:f16").find("needs keys experts, used and expert_hidden") !=
	      std::string::npos);
	CHECK(error_of_name("mixtral-8x7b,used=9:f16").find("cannot use 9 of 8 experts") != std::string::npos);
	CHECK(error_of_name("qwen3-8b,vocab=99999999999:f16").find("vocab") != std::string::npos);
}
