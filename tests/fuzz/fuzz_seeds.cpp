// Writes the seeds of the fuzzers: fuzz_seeds OUT_DIR fills OUT_DIR/gguf, grammar, http, npy, policy, session, spirv,
// template, tokenizer and vision with small valid files.
#include "engine/core/npy.h"
#include "engine/kv_host/policy.h"
#include "engine/run/session_file.h"
#include "kernel_list.inc"
#include "models/chat/builtin.h"
#include "tests/support/assets.h"
#include "tests/support/mixture_builder.h"
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

// A byte of flags, a template, a zero byte, messages or variables. See fuzz_template.cpp.
void write_templates(const std::filesystem::path& folder) {
	std::filesystem::create_directories(folder);
	for (std::string_view name : builtin_chat_templates())
		write(folder / name, "\3" + std::string(builtin_chat_template(name)), {});
	const std::string all = file_text(std::string(KVRUN_SOURCE_DIR) + "/tests/golden/chat/snippets.txt");
	constexpr std::string_view kBetween = "\n----\n";
	for (size_t at = 0, n = 0; at < all.size(); ++n) {
		const size_t end = std::min(all.find(kBetween, at), all.size());
		write(folder / fmt::format("snippet-{}", n), "\1" + all.substr(at, end - at), {});
		at = end + kBetween.size();
	}
	const std::string zero(1, '\0');
	write(folder / "messages", "\5{{ messages }}" + zero + R"([{"role": "user", "content": [{"a": 1e9}]}])", {});
	write(folder / "variables", "\1{{ x ~ y }}" + zero + R"({"x": {"k": [true, null]}, "y": -5})", {});
	// values that share their parts, and builtins applied to a long text
	const std::string pairs =
	    "\1{% set n = namespace(x=(1,), y=(1,)) %}{% for i in range(40) %}{% set n.x = (n.x, n.x) %}"
	    "{% set n.y = (n.y, n.y) %}{% endfor %}";
	int n = 0;
	for (const char* use :
	     {"{{ {n.x: 1} }}", "{{ n.x == n.y }}", "{{ [n.x, n.y]|sort }}", "{{ [n.x, n.y]|unique|list }}"})
		write(folder / fmt::format("pairs-{}", ++n), pairs + use, {});
	n = 0;
	for (const char* use : {"m|title", "m.title()", "m|upper", "'b' in m", "m|replace('a', m)", "m.rsplit('a')",
	                        "m.rfind(m[1:])", "[m, m]|join", "[m, m ~ m]|sort", "m[::-1]", "'%.300f' % 1e308"})
		write(folder / fmt::format("builtin-{}", ++n),
		      fmt::format(
		          "\1{{% set m = 'aB ' * 3000 %}}{{% for i in range(9000) %}}{{% if {} %}}{{% endif %}}{{% endfor %}}",
		          use),
		      {});
	const std::string begin = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f";
	const std::string replies[] = {R"(<think>a</think>b<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)",
	                               R"(a[TOOL_CALLS]f[CALL_ID]i[ARGS]{"a": 1}[TOOL_CALLS][{"name": "f"}])",
	                               begin + "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
	                               R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"})"};
	for (int i = 0; i < 4; ++i)
		write(folder / fmt::format("reply-{}", i), std::string(1, char(8 * (i + 1))) + zero + replies[i], {});
}

// A grammar or a schema, a zero byte, bytes that choose tokens. See fuzz_grammar.cpp.
void write_grammars(const std::filesystem::path& folder) {
	std::filesystem::create_directories(folder);
	const std::string zero(1, '\0'), choices = "\1\7\3\50\2\11\100\4\30\5\17\6";
	const char* texts[] = {
	    "root ::= (\"ab\" | [a-c]{2,4} x?)* \"!\"\nx ::= \"(\" root \")\" # comment",
	    "root ::= [^\\x00-\\x7f]+ \"\\u00e9\" .{0,3} <|call|>",
	    "root ::= ((\"a\"?){9}){9} | root2\nroot2 ::= \"b\" root2 | \"\"",
	    R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 120},
		"b": {"$ref": "#/$defs/x"}},
		"required": ["a"], "additionalProperties": {"type": "null"}, "$defs": {"x": {"type": "array",
		"items": {"$ref": "#"}, "maxItems": 2}}})",
	    R"({"anyOf": [{"enum": ["a", 1, null]}, {"type": "string", "pattern": "^(a|b\\d){1,3}$"},
		{"type": "number", "exclusiveMinimum": 0.5, "maximum": 3}]})",
	    R"({"allOf": [{"properties": {"p": {"type": "string", "maxLength": 3}}}, {"type": "object", "required": ["p"]}],
		"oneOf": [{"type": "object"}]})",
	    R"({"type": "array", "prefixItems": [{"format": "date"}, true], "items": false, "minItems": 1})",
	};
	int n = 0;
	for (const char* t : texts) write(folder / fmt::format("grammar-{}", ++n), t + zero + choices, {});
}

// Requests as sent to kvrun serve.
void write_requests(const std::filesystem::path& folder) {
	std::filesystem::create_directories(folder);
	const auto post = [&](const char* name, const char* path, const std::string& body) {
		write(
		    folder / name,
		    fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body),
		    {});
	};
	int n = 0;
	for (const char* path :
	     {"/", "/health", "/metrics", "/slots", "/sessions", "/sessions/a", "/v1/models", "/v1/models/a", "/nothing"})
		write(folder / fmt::format("get-{}", ++n), fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path), {});
	write(folder / "delete", "DELETE /sessions/a HTTP/1.1\r\n\r\n", {});
	write(folder / "two", "GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.0\r\n\r\n", {});
	write(folder / "chunks",
	      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{\"content\": \"\"}\r\n0\r\n\r\n", {});
	write(folder / "preflight", "OPTIONS / HTTP/1.1\r\nOrigin: http://localhost\r\nHost: localhost\r\n\r\n", {});
	write(folder / "hosts", "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", {});
	write(folder / "encoding", "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", {});
	post("pin", "/sessions/a", R"({"pinned": true})");
	post("twice", "/detokenize", R"({"tokens": [1], "tokens": [], "x": {"a": {"a": [{}, {}]}}})");
	post("tokenize", "/tokenize", R"({"content": "ab <s> \u00e9", "add_special": true, "parse_special": false})");
	post("detokenize", "/detokenize", R"({"tokens": [1, 2, 300]})");
	post("embeddings", "/v1/embeddings", R"({"input": "x"})");
	post("completion", "/v1/completions",
	     R"({"prompt": "a", "max_tokens": 3, "stop": ["b", "c"], "seed": 1, "top_p": 0.5})");
	post("tokens", "/v1/completions", R"({"prompt": [1, 2], "logprobs": 2, "kv": "kivi2", "temperature": 0})");
	post("chat", "/v1/chat/completions",
	     R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text",
		"text": "u"}]}], "stream": true, "stream_options": {"include_usage": true}, "session": "a", "logprobs": true,
		"top_logprobs": 2})");
	post("prompts", "/v1/completions",
	     R"({"prompt": ["a", [1, 2]], "n": 2, "logit_bias": {"5": -1}, "max_tokens": -1})");
	post("response", "/v1/responses",
	     R"({"instructions": "s", "input": [{"role": "user", "content": [{"type": "input_text", "text": "u"}]},
		{"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]}, {"type": "function_call",
		"call_id": "1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1",
		"output": "2"}], "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function",
		"name": "f"}, "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "stream": true})");
	post("message", "/v1/messages",
	     R"({"max_tokens": 3, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "u"},
		{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "1",
		"name": "f", "input": {"a": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
		"content": "2"}]}], "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"},
		"thinking": {"type": "enabled", "budget_tokens": 5}, "stop_sequences": ["x"]})");
	post("count", "/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "u"}]})");
	post("tools", "/v1/chat/completions",
	     R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": null,
		"tool_calls": [{"id": "1",
		"type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "2"}],
		"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
		"chat_template_kwargs": {"a": 1}})");
}

// A byte of flags, then a session file. See fuzz_session.cpp.
void write_sessions(const std::filesystem::path& folder) {
	std::filesystem::create_directories(folder);
	EngineOptions o;
	o.model = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama.gguf";
	o.backend.device = "cpu";
	o.kv_budget = 4 << 20;
	const auto engine = Engine::open(o);
	for (const char* policy :
	     {"fp16", "kivi2,recent_keep=8,flush=32", "zipcache,flush=25", "mikv,recent_keep=8,flush=16"}) {
		SessionOptions s;
		s.kv = parse_policy(policy);
		s.ctx = 64;
		Session session(*engine, s);
		std::vector<uint32_t> tokens(40);
		for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = 3 + i * 7 % 50;
		session.prefill(tokens);
		const std::filesystem::path file = folder / session.plan().policy.name;
		save_session(session, file, {});
		const std::string bytes = file_text(file);
		write(file, "\1" + bytes, {});
	}
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
	const std::filesystem::path vision = std::filesystem::path(argv[1]) / "vision",
	                            golden = KVRUN_SOURCE_DIR "/tests/golden/vision";
	std::filesystem::create_directories(vision);
	for (const auto& entry : std::filesystem::directory_iterator(golden))
		if (entry.path().extension() == ".gguf" && entry.path().stem() != "text")
			std::filesystem::copy_file(entry.path(), vision / entry.path().filename(),
			                           std::filesystem::copy_options::overwrite_existing);
	for (const char* kind : {"assistant", "eagle", "dflash", "encoder"}) // files that draft; encoders of texts
		for (const auto& entry : std::filesystem::directory_iterator(golden.parent_path() / kind))
			if (entry.path().extension() == ".gguf" && entry.path().stem() != "right.model")
				std::filesystem::copy_file(entry.path(), gguf / (kind + ("-" + entry.path().filename().string())),
				                           std::filesystem::copy_options::overwrite_existing);
	for (const char* arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		TinyShape s;
		s.arch = arch;
		s.dim = s.hidden_dim = 8;
		s.n_heads = 1;
		GgufBuilder b = tiny_model(s);
		add_spm(b, {"<unk>", "<s>", "</s>", "a"}); // the fuzzer does not need a whole vocabulary
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
	for (const bool fused : {false, true}) {
		GgufBuilder b =
		    tiny_mixture({.shared = 8, .fused = fused, .bias = fused, .choice_bias = true, .shared_gate = fused});
		add_spm(b, {"<unk>", "<s>", "</s>", "a"});
		b.u32("llama.vocab_size", 4).tensor_f32("token_embd.weight", {16, 4}, std::vector<float>(64));
		b.tensor_f32("output.weight", {16, 4}, std::vector<float>(64));
		b.u32("llama.expert_group_count", 2).f32("llama.expert_weights_scale", 2).u32("llama.expert_gating_func", 2);
		write(gguf / (fused ? "experts-fused" : "experts"), "", b.bytes());
	}
	const std::filesystem::path spirv = std::filesystem::path(argv[1]) / "spirv";
	std::filesystem::create_directories(spirv);
	for (const KernelBlob& b : kernel_blobs()) {
		const std::span<const std::byte> bytes = std::as_bytes(b.spirv);
		write(spirv / b.name, "", {bytes.begin(), bytes.end()});
	}
	write_grammars(std::filesystem::path(argv[1]) / "grammar");
	write_templates(std::filesystem::path(argv[1]) / "template");
	write_requests(std::filesystem::path(argv[1]) / "http");
	write_sessions(std::filesystem::path(argv[1]) / "session");
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
	      "zipcache,score=sum,probe=0.5,probe.random=0.2,v.prescale=none", "h2o,budget=40,recent=64,page=32",
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
	for (int flags = 0; flags < 16; ++flags) { // of text encoders; unigrams: also units of a normalizer
		constexpr char kWords[] = "\0\1\2ll\0\0\1H\3\0\3<x>\0\0\5hello\7\2\2 a\0\5\3ell\0\0\1o";
		const std::string front = text + std::string{char(flags), 7}, words(kWords, sizeof kWords - 1);
		std::string units(128 * 4, '\0'); // of which H and l are keys: the texts at 0 and 2
		const auto unit = [&](uint32_t at, uint32_t v) { std::memcpy(units.data() + at * 4, &v, sizeof v); };
		unit('H', 'H' | 1u << 8 | uint32_t('H' ^ 1) << 10);
		unit('l', 'l' | 1u << 8 | uint32_t('l' ^ 2) << 10);
		unit(1, 1u << 31);
		unit(2, 1u << 31 | 2);
		write(tok / fmt::format("words-wpm-{}", flags), "\4" + front + words, {});
		write(tok / fmt::format("words-ugm-{}", flags), "\6" + front + char(128) + units + words, {});
	}
	return 0;
}
