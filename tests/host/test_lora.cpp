// Adapters that are refused, each with one line that names the file and what is wrong.
#include "models/lora.h"
#include "tests/support/assets.h"
#include "tests/support/errors.h"
#include "tests/support/lora_builder.h"
#include "tests/support/temp_folder.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fstream>
#include <functional>

using namespace kvrun;

namespace {

Gguf tiny(const std::string& name) { return Gguf::open(test_root() + "/tests/golden/tiny/" + name + ".gguf"); }

std::string write(const TempFolder& folder, const GgufBuilder& b) {
	const std::string path = (folder.path / "a.gguf").string();
	const std::vector<std::byte> bytes = b.bytes();
	std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), long(bytes.size()));
	return path;
}

std::string refusal(const std::string& of, const std::function<void(GgufBuilder&)>& change, Code* code = nullptr) {
	const Gguf model = tiny(of);
	GgufBuilder b = lora_file(model, random_pairs(model, 4, 1), 8);
	change(b);
	const TempFolder folder;
	const std::string path = write(folder, b);
	const std::string what = error_of([&] { open_loras({{path, 1}}, model, read_config(model)); }, code);
	CHECK(what.find('\n') == what.npos);
	if (!what.empty()) CHECK(what.starts_with(path));
	return what;
}

std::vector<LoraOption> list(std::vector<LoraOption> l) { return l; }

} // namespace

TEST_CASE("lora: lists of files and scales") {
	CHECK(parse_loras("") == list({}));
	CHECK(parse_loras("a.gguf") == list({{"a.gguf", 1}}));
	CHECK(parse_loras("a.gguf:0.5,b.gguf:-2") == list({{"a.gguf", 0.5f}, {"b.gguf", -2}}));
	CHECK(parse_loras("C:\\models\\a.gguf") == list({{"C:\\models\\a.gguf", 1}}));
	CHECK(parse_loras("C:\\models\\a.gguf:1e-1") == list({{"C:\\models\\a.gguf", 0.1f}}));
	for (const char* bad : {",", ":2", "a.gguf:inf", "a.gguf:nan", "a.gguf,,b.gguf"}) {
		CAPTURE(bad);
		Code code = Code::Io;
		CHECK(has(error_of([&] { parse_loras(bad); }, &code), "expected FILE or FILE:SCALE"));
		CHECK(code == Code::Invalid);
	}
}

TEST_CASE("lora: an adapter of the model opens, with its rank, alpha and memory") {
	CHECK(refusal("qwen2", [](GgufBuilder&) {}).empty());
	const Gguf model = tiny("qwen2");
	const Config c = read_config(model);
	const TempFolder folder;
	const std::string path = write(folder, lora_file(model, random_pairs(model, 4, 1), 8));
	const std::vector<LoraFile> files = open_loras({{path, 0.5f}}, model, c);
	REQUIRE(files.size() == 1);
	CHECK(files[0].factor(files[0].matrices.at("blk.0.attn_q.weight")) == 0.5f * 8 / 4);
	CHECK(files[0].matrices.size() == 7 * c.n_layers);
	uint64_t want = 0; // ranks are padded to 32
	for (const GgufTensor& t : model.tensors())
		if (is_projection(t)) want += 32 * 4 * (t.rows() + t.cols());
	CHECK(lora_bytes(files, c) == want);
	CHECK(lora_bytes({}, c) == 0);
}

TEST_CASE("lora: an adapter is no model") {
	const Gguf model = tiny("qwen2");
	const std::vector<std::byte> bytes = lora_file(model, random_pairs(model, 4, 1), 8).bytes();
	CHECK(has(refusal_by([&] { read_config(Gguf::parse("test.gguf", bytes)); }), "an adapter; give its model with -m"));
}

TEST_CASE("lora: files that are no adapter, or another model's, are refused by name") {
	Code code = Code::Io;
	CHECK(has(refusal(
	              "qwen2", [](GgufBuilder& b) { b.erase("general.type"); }, &code),
	          "give models with -m"));
	CHECK(code == Code::Unsupported);
	CHECK(has(refusal("qwen2", [](GgufBuilder& b) { b.text("adapter.type", "dora"); }), "adapter.type is 'dora'"));
	CHECK(has(refusal("qwen2",
	                  [](GgufBuilder& b) {
		                  b.numbers("adapter.alora.invocation_tokens", GgufType::U32, std::vector<uint32_t>{1});
	                  }),
	          "with invocation tokens"));
	CHECK(has(refusal("qwen2", [](GgufBuilder& b) { b.text("general.architecture", "llama"); }),
	          "of architecture 'llama'"));
	CHECK(has(refusal("qwen2", [](GgufBuilder& b) { b.f32("adapter.lora.alpha", NAN); }), "adapter.lora.alpha"));
	CHECK(has(refusal("qwen2", [](GgufBuilder& b) { b.tensors.clear(); }), "it changes nothing"));
	CHECK(has(refusal(
	              "qwen2",
	              [](GgufBuilder& b) {
		              b.tensor_f32("blk.0.attn_q.weight", {2}, {1, 2});
	              },
	              &code),
	          "neither .lora_a nor .lora_b"));
	CHECK(code == Code::Unsupported);
}

TEST_CASE("lora: pairs that do not fit the model's tensors are refused by name") {
	const std::string q = "blk.0.attn_q.weight";
	Code code = Code::Io;
	CHECK(has(refusal(
	              "qwen2", [&](GgufBuilder& b) { b.erase_tensor(q + ".lora_b"); }, &code),
	          q + ".lora_a is there without " + q + ".lora_b"));
	CHECK(code == Code::Format);
	CHECK(has(refusal("qwen2", [&](GgufBuilder& b) { b.erase_tensor(q + ".lora_a"); }),
	          q + ".lora_b is there without " + q + ".lora_a"));
	for (const char* part : {".lora_a", ".lora_b"})
		for (const size_t dim : {0, 1}) {
			CAPTURE(part);
			CAPTURE(dim);
			CHECK(has(refusal("qwen2",
			                  [&](GgufBuilder& b) {
				                  GgufBuilder::Tensor& t = b.find(q + part);
				                  t.dims[dim] *= 2, t.data += t.data;
			                  }),
			          q + " has A "));
		}
	CHECK(has(refusal("qwen2",
	                  [&](GgufBuilder& b) {
		                  for (const char* part : {".lora_a", ".lora_b"})
			                  b.find(q + part).name = "blk.7.attn_q.weight" + std::string(part);
	                  }),
	          "it changes blk.7.attn_q.weight, which "));
}

TEST_CASE("lora: pairs of experts: one for each of them") {
	CHECK(refusal("qwen3moe", [](GgufBuilder&) {}).empty());
	CHECK(refusal("qwen2moe", [](GgufBuilder&) {}).empty()); // gates and factors in one tensor
	const std::string down = "blk.0.ffn_down_exps.weight";
	for (const char* part : {".lora_a", ".lora_b"}) {
		CAPTURE(part);
		CHECK(has(refusal("qwen3moe",
		                  [&](GgufBuilder& b) {
			                  GgufBuilder::Tensor& t = b.find(down + part);
			                  t.dims = {t.dims[0], t.dims[1] * t.dims[2]};
		                  }),
		          "x rank for each of 8 experts"));
		CHECK(has(refusal("qwen3moe",
		                  [&](GgufBuilder& b) {
			                  GgufBuilder::Tensor& t = b.find(down + part);
			                  t.dims[2] /= 2, t.data.resize(t.data.size() / 2);
		                  }),
		          down + " has A "));
	}
	const Gguf model = tiny("qwen3moe");
	const Config c = read_config(model);
	const TempFolder folder;
	const std::string path = write(folder, lora_file(model, random_pairs(model, 4, 1), 8));
	uint64_t want = 0; // ranks are padded to 32
	for (const GgufTensor& t : model.tensors())
		if (is_projection(t)) want += 32 * 4 * (t.rows() + (t.n_dims == 3 ? t.shape[2] : 1) * t.cols());
	CHECK(lora_bytes(open_loras({{path, 1}}, model, c), c) == want);
}

TEST_CASE("lora: tensors that kvrun does not change are refused by name") {
	const auto add = [](const std::string& name, const GgufTensor& t) {
		return [=, cols = t.cols(), rows = t.rows()](GgufBuilder& b) {
			b.tensor_f32(name + ".lora_a", {cols, 1}, std::vector<float>(cols));
			b.tensor_f32(name + ".lora_b", {1, rows}, std::vector<float>(rows));
		};
	};
	for (const auto& row : {std::pair{"qwen2", "token_embd.weight"},
	                        {"gpt_oss", "blk.0.ffn_down_exps.weight"},
	                        {"qwen2", "blk.0.attn_norm.weight"}}) {
		const char *model = row.first, *name = row.second;
		CAPTURE(name);
		const Gguf g = tiny(model);
		const GgufTensor* t = g.find_tensor(name);
		REQUIRE(t);
		Code code = Code::Io;
		CHECK(has(refusal(model, add(name, *t), &code), std::string("it changes ") + name + "; kvrun applies"));
		CHECK(code == Code::Unsupported);
	}
}
