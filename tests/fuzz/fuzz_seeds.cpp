// Writes the seeds of the fuzzers: fuzz_seeds OUT_DIR fills OUT_DIR/gguf, npy, policy and tokenizer with small sound
// files.
#include "engine/core/npy.h"
#include "engine/kv/policy.h"
#include "tests/support/gguf_builder.h"
#include <cstdio>
#include <filesystem>
#include <fstream>

using namespace kvrun;

namespace {

void write(const std::filesystem::path& path, const std::string& head, const std::vector<std::byte>& bytes) {
	std::ofstream f(path, std::ios::binary);
	f << head;
	f.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}

} // namespace

int main(int argc, char** argv) {
	if (argc != 2) {
		std::fputs("usage: fuzz_seeds OUT_DIR\n", stderr);
		return 2;
	}
	const std::filesystem::path gguf = std::filesystem::path(argv[1]) / "gguf",
	                            tok = std::filesystem::path(argv[1]) / "tokenizer";
	std::filesystem::create_directories(gguf);
	std::filesystem::create_directories(tok);
	for (const char* arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		TinyShape s;
		s.arch = arch;
		s.dim = s.hidden_dim = 8;
		s.n_heads = 1;
		GgufBuilder b = tiny_model(s);
		add_spm(b, {"<unk>", "<s>", "</s>", "a"}); // the fuzzer need not carry a whole vocabulary
		b.u32(s.arch + ".vocab_size", 4).tensor_f32("token_embd.weight", {8, 4}, std::vector<float>(32));
		b.tensor_f32("output.weight", {8, 4}, std::vector<float>(32));
		write(gguf / arch, "", b.bytes());
		b.text(s.arch + ".rope.scaling.type", "yarn").f32(s.arch + ".rope.scaling.factor", 4);
		b.tensor_f32("rope_freqs.weight", {4}, {1, 2, 3, 4});
		write(gguf / fmt::format("{}-yarn", arch), "", b.bytes());
		b.text(s.arch + ".rope.scaling.type", "llama3").erase_tensor("rope_freqs.weight");
		b.f32(s.arch + ".rope.scaling.low_freq_factor", 1).f32(s.arch + ".rope.scaling.high_freq_factor", 4);
		write(gguf / fmt::format("{}-llama3", arch), "", b.bytes());
		b.text(s.arch + ".rope.scaling.type", "longrope").tensor_f32("rope_factors_long.weight", {4}, {1, 2, 3, 4});
		b.tensor_f32("rope_factors_short.weight", {4}, {1, 1, 1, 1});
		write(gguf / fmt::format("{}-longrope", arch), "", b.bytes());
	}
	const std::filesystem::path npy = std::filesystem::path(argv[1]) / "npy",
	                            policy = std::filesystem::path(argv[1]) / "policy";
	std::filesystem::create_directories(npy);
	std::filesystem::create_directories(policy);
	const float numbers[6] = {0, 1, 2, 3, 4, 5};
	npy_write<float>(npy / "matrix", {2, 3}, numbers);
	npy_write<float>(npy / "scalar", {}, std::span(numbers, 1));
	const int64_t integers[2] = {-1, 1};
	npy_write<int64_t>(npy / "integers", {2}, integers);
	char at = 0;
	for (const KvPolicy& p : all_policies()) // a shape, prompts (odd) and tokens (even), the text
		at++, write(policy / p.name, std::string{at, char(0x83), 4, 0x47, char(0xc8), 7, 2} + p.text, {});
	for (const char* text :
	     {"kivi2,group=64,recent_keep=32,flush=20,eta=0.1,sinks=3", "xquant,kq=2,vq=1,km=2,vm=0,stride=2", "asymkv2/1",
	      "mikv,salient.bits=4,balance=off,per_head=off,ratio=40%",
	      "zipcache,score=sum,probe=0.5,probe.random=0.2,v.norm=none", "h2o,budget=40,recent=64,page=32",
	      "rtn4,k.bits=8@1-2,regular.v.scale=token,k.group=head", "q8,logquant,W=10,group=32"})
		at++, write(policy / fmt::format("option-{}", int(at)),
		            std::string{at, char(0x83), 4, 0x47, char(0xc8), 7, 2} + text, {});
	const std::string chosen = "Hello  a<s>b 12'll \xff\xe2\x82\xac\n\n", text = char(chosen.size()) + chosen;
	GgufBuilder spm;
	add_spm(spm, {"<unk>", "<s>", "</s>", "\xe2\x96\x81", "a",
	              "\xe2\x96\x81"
	              "a"});
	write(tok / "file-spm", "\1" + text, spm.bytes());
	GgufBuilder bpe;
	bpe.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
	bpe.texts("tokenizer.ggml.tokens", {"H", "e", "l", "o", "ll", "<s>"}).texts("tokenizer.ggml.merges", {"l l"});
	bpe.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {1, 1, 1, 1, 1, 3});
	write(tok / "file-bpe", "\1" + text, bpe.bytes());
	for (int pre = 0; pre < 80; ++pre) { // flags, then words: kind, score, length, text
		constexpr char kWords[] = "\0\1\2ll\0\0\1a\3\0\3<s>\0\5\5Hello\0\2\2 a\7\0\2\n\n";
		const std::string words = std::string{char(pre), 6} + std::string(kWords, sizeof kWords - 1);
		write(tok / fmt::format("words-bpe-{}", pre), std::string(1, '\0') + text + words, {});
		write(tok / fmt::format("words-spm-{}", pre), "\2" + text + words, {});
	}
	return 0;
}
