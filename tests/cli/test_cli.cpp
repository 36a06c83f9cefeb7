// The program as a user sees it: exit codes and messages; rows of the fault table.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/cli/run_model.h"
#include "tests/support/assets.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <unistd.h>

using namespace kvrun;

TEST_CASE("cli: adapters, with scales, several of them, and files that are none") {
	const std::string model = kRoot + "/tests/golden/tiny/llama.gguf", lora = kRoot + "/tests/golden/lora/llama.gguf";
	const auto run = [&](std::vector<std::string> more) {
		more.insert(more.begin(), {"run", "-m", model, "--device", "cpu", "--temp", "0", "-p", "a b c", "-n", "12"});
		return run_program(RunSpec{.args = more});
	};
	const std::string plain = run({}).out, with = run({"--lora", lora}).out;
	CHECK(with != plain);
	CHECK(run({"--lora", lora + ":0"}).out == plain);
	CHECK(run({"--lora-scaled", lora + ":0.5," + lora + ":0.5"}).out == with);
	CHECK(run({"--lora", lora + ":0.5", "--lora", lora + ":0.5"}).out == with);
	const Ran none = run({"--lora", model}), other = run_model({"-p", "x", "--lora", lora}),
	          bad = run({"--lora", ":2"});
	CHECK(none.code == 3);
	CHECK(none.err.find("is no adapter") != std::string::npos);
	CHECK(other.code == 3);
	CHECK(other.err.find("the adapter is of another model") != std::string::npos);
	CHECK(bad.code == 2);
	CHECK(run({"--lora", "/nowhere.gguf"}).code == 3);
}

TEST_CASE("cli: images in front of a prompt and in a message; files that are none") {
	const std::string vision = kRoot + "/tests/golden/vision/", model = vision + "text.gguf";
	const auto run = [&](std::vector<std::string> more) {
		more.insert(more.begin(), {"run", "-m", model, "--device", "cpu", "--temp", "0", "-p", "a b c", "-n", "12"});
		return run_program(RunSpec{.args = more});
	};
	const std::vector<std::string> mlp = {"--mmproj", vision + "mlp.gguf"};
	const auto with = [&](std::vector<std::string> more) {
		more.insert(more.end(), mlp.begin(), mlp.end());
		return run(more);
	};
	const Ran plain = run({}), image = with({"--image", vision + "tile.png"});
	CHECK(image.code == 0);
	CHECK(with({}).out == plain.out);
	CHECK(image.out != plain.out);
	CHECK(with({"--image", vision + "tile.webp"}).out == image.out);
	CHECK(with({"--image", vision + "tile.png", "--kv", "kivi4"}).code == 0);
	const Ran two = with({"--image", vision + "tile.png", "--image", vision + "tile.jpg", "--json"});
	CHECK(two.out.find("\"prompt_tokens\": 38") != std::string::npos); // 2 * 16 rows, BOS and five tokens
	CHECK(with({"--image", vision + "tile.png", "--chat", "--chat-template", "chatml"}).code == 0);

	// 4 rows of 8 x 8 pixels, made 9; row ends, and a token behind them
	const auto limited = [&](std::vector<std::string> more) {
		more.insert(more.end(), {"--mmproj", vision + "pixtral.gguf", "--image", vision + "tile.png", "--json"});
		return run(more);
	};
	CHECK(limited({}).out.find("\"prompt_tokens\": 18,") != std::string::npos);
	CHECK(limited({"--image-max-tokens", "4"}).out.find("\"prompt_tokens\": 12,") != std::string::npos);
	CHECK(limited({"--image-min-tokens", "20"}).out.find("\"prompt_tokens\": 36,") != std::string::npos); // 5 x 5

	const auto refused = [](const Ran& r, int code, const std::string& why) {
		CHECK(r.code == code);
		CHECK_MESSAGE(r.err.find(why) != std::string::npos, r.err);
	};
	refused(run({"--image-max-tokens", "4"}), 2, "give --mmproj FILE");
	refused(with({"--image-max-tokens", "4"}), 2, "the same number of tokens of every tile");
	refused(limited({"--image-max-tokens", "4", "--image-min-tokens", "5"}), 2, "at least 5 tokens and at most 4");
	refused(run({"--image", vision + "tile.png"}), 2, "--image needs --mmproj");
	refused(with({"--image", vision + "mlp.gguf"}), 3, "neither PNG, JPEG nor WebP");
	refused(with({"--image", "/nowhere.png"}), 3, "/nowhere.png");
	refused(run({"--mmproj", model}), 3, "is no vision encoder");
	refused(run_model({"-p", "x", "--mmproj", vision + "mlp.gguf"}), 3, "take the mmproj file of this model");
}

TEST_CASE("cli: sounds in front of a prompt and in a message; files that are none") {
	const std::string vision = kRoot + "/tests/golden/vision/", audio = kRoot + "/tests/golden/audio/";
	const auto run = [&](std::vector<std::string> more) {
		more.insert(more.begin(),
		            {"run", "-m", vision + "text.gguf", "--device", "cpu", "--temp", "0", "-p", "a b c", "-n", "12"});
		return run_program(RunSpec{.args = more});
	};
	const auto with = [&](std::vector<std::string> more) {
		more.insert(more.end(), {"--mmproj", audio + "qwen2a.gguf"});
		return run(more);
	};
	const auto n_prompt = [&](std::vector<std::string> more) {
		more.push_back("--json");
		const Ran r = with(more);
		REQUIRE_MESSAGE(r.code == 0, r.err);
		return nlohmann::json::parse(r.out)["prompt_tokens"].get<int>();
	};
	const Ran plain = run({}), sound = with({"--audio", audio + "tone.wav"});
	REQUIRE_MESSAGE(sound.code == 0, sound.err);
	CHECK(with({}).out == plain.out);
	CHECK(sound.out != plain.out);
	const int none = n_prompt({}), one = n_prompt({"--audio", audio + "tone.wav"});
	CHECK(one > none + 5);
	CHECK(n_prompt({"--audio", audio + "tone.flac", "--audio", audio + "tone.wav"}) == none + 2 * (one - none));
	CHECK(n_prompt({"--audio", audio + "tone.wav", "--chat", "--chat-template", "chatml"}) > one);

	const auto refused = [](const Ran& r, int code, const std::string& why) {
		CHECK(r.code == code);
		CHECK_MESSAGE(r.err.find(why) != std::string::npos, r.err);
	};
	refused(run({"--audio", audio + "tone.wav"}), 2, "--audio needs --mmproj");
	refused(with({"--audio", audio + "qwen2a.gguf"}), 3, "neither WAV, FLAC, Ogg nor MP3");
	refused(with({"--audio", "/nowhere.wav"}), 3, "/nowhere.wav");
	refused(with({"--audio", vision + "tile.png"}), 3, "it is an image (PNG), no sound; give it as an image");
	refused(with({"--image", audio + "tone.mp3"}), 3, "it is a sound (MP3), no image; give it as audio");
	refused(with({"--image", vision + "tile.png"}), 3, "--image: this model reads no images");
	refused(run({"--audio", audio + "tone.wav", "--mmproj", vision + "mlp.gguf"}), 3,
	        "--audio: this model reads no sounds");
}

TEST_CASE("cli: answers of a form") {
	const TempFile grammar("root ::= (\"yes\" | \"no\") \"!\"{2}\n");
	const Ran r = run_model({"-p", "Is it?", "--grammar", grammar.path});
	CHECK(r.code == 0);
	CHECK((r.out == "yes!!" || r.out == "no!!"));
	const Ran j = run_model({"-p", "Once", "--json-schema",
	                         R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2})"});
	CHECK(j.code == 0);
	CHECK(nlohmann::json::parse(j.out, nullptr, false).size() == 2);
	// the form is that of the answer behind the reasoning, in which the prompt ends
	const TempFile thinking("{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
	                        "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
	                        "{% if add_generation_prompt %}[assistant]<think>{% endif %}");
	for (const bool thinks : {false, true}) {
		const Ran c = run_model({"-p", "Once", "--chat", "--grammar", grammar.path, "-n", "8", "--chat-template",
		                         thinks ? thinking.path : "chatml"});
		CHECK(c.code == 0);
		CHECK((c.out.starts_with("yes!!") || c.out.starts_with("no!!")) == !thinks);
	}
	const std::vector<std::string> run = {"run", "-m", kModel, "--device", "cpu", "-p", "x"};
	const auto with = [&](std::vector<std::string> more) {
		more.insert(more.begin(), run.begin(), run.end());
		return more;
	};
	check_error(with({"--grammar", "root ::= x"}), 3, {"rule x"});
	check_error(with({"--grammar", "/nowhere/x.gbnf"}), 3, {"/nowhere/x.gbnf", "neither a file"});
	check_error(with({"--json-schema", "{\"not\": {}}"}), 3, {"#/not"});
	check_error(with({"--json-schema", ""}), 2, {"--json-schema is empty"});
	check_error(with({"--json-schema", "{}", "--grammar", "root ::= \"a\""}), 2, {"give one of them"});
}

TEST_CASE("T29 cli: wrong words and numbers end with 2, name what was wrong and what was meant") {
	check_error({}, 2, {"no command"});
	check_error({"rnu"}, 2, {"command 'rnu'", "'run'"});
	check_error({"frobnicate"}, 2, {"unknown command 'frobnicate'"});
	check_error({"frobnicate", "--help"}, 2, {"unknown command 'frobnicate'"});
	check_error({"run", "--modle", kModel}, 2, {"'--modle'", "'--model'"});
	check_error({"run", "-m", kModel, "-p", "x", "--temprature", "0"}, 2, {"'--temprature'", "'--temperature'"});
	check_error({"run", "-m", kModel, "-p", "x", "surplus"}, 2, {"argument 'surplus'", "a prompt follows -p"});
	check_error({"run", "-p", "x"}, 2, {"--model", "required"});
	check_error({"run", "-m"}, 2, {"--model"});
	check_error({"run", "-m", kModel, "-p", "x", "-f", kRecord}, 2, {"--prompt", "--file"});
	check_error({"run", "-m", kModel, "-m", kModel, "-p", "x"}, 2, {"--model", "2 times"});
	check_error({"run", "-m", kModel, "-p", "x", "--stop", ""}, 2, {"stop string is empty"});
	check_error({"run", "-m", kModel, "-p", "x", "--kv", "nonsense"}, 2, {"nonsense"});
	check_error({"run", "-m", kModel, "-p", "x", "--device", "cpu,cpu"}, 2, {"--device cpu,cpu lists", "twice"});
	check_error({"run", "-m", kModel, "-p", "x", "--device", "cpu", "--split", "1,3"}, 2, {"needs several devices"});
	for (const char* value : {"abc", "-1", "1e9", "18446744073709551616", "18446744073709551615", "nan", "0x10", "",
	                          " 5", "5 ", "+5", "5.0"}) {
		check_error({"run", "-m", kModel, "-p", "x", "--ctx-size", value}, 2,
		            {"--ctx-size", fmt::format("'{}'", value), "0 to 16777216"});
	}
	check_error({"run", "-m", kModel, "-p", "x", "-n", "-3"}, 2, {"--predict", "'-3'", "-2 to 2147483647"});
	check_error({"run", "-m", kModel, "-p", "x", "-ub", "0"}, 2, {"--ubatch-size", "'0'", "1 to"});
	check_error({"run", "-m", kModel, "-p", "x", "--kv-budget", "2T"}, 2, {"--kv-budget", "'2T'"});
	check_error({"bench", "-m", kModel, "-d", "0,,5"}, 2, {"--n-depth", "''"});
	check_error({"bench", "-m", kModel, "-o", "xml"}, 2, {"--output", "'xml'", "md or json"});
	check_error({"bench", "-m", kModel, "-p", "0", "-n", "0"}, 2, {"nothing to measure"});
}

TEST_CASE("cli: a command without the value that it needs says which") {
	check_error({"rm"}, 2, {"kvrun rm needs NAME", "names that 'kvrun list' prints"});
	check_error({"pull"}, 2, {"kvrun pull needs USER/REPO[:QUANT]: the repository"});
}

TEST_CASE("cli: devices --shaders compiles the kernels and uses that are chosen") {
	std::vector<std::string> args = {"devices", "--shaders", "--family", "navi21", "--kernel", "attend", "--use"};
	const std::string use = "head_dim 128, 4 heads, K f16, V f16, pages of 32";
	args.insert(args.end(), {use, "--json"});
	const Ran r = run_program(args);
	if (r.err.find("needs the RADV driver") != std::string::npos) return skip("no RADV (package mesa-vulkan-drivers)");
	if (r.err.find("RADV_FORCE_FAMILY=<family> has been removed") != std::string::npos) // says the driver
		return skip("this RADV has no RADV_FORCE_FAMILY, newer ones dropped it");
	REQUIRE(r.code == 0);
	const auto kernels = nlohmann::json::parse(r.out)[0]["kernels"];
	CHECK(kernels.size() >= 2);
	CHECK(kernels.size() < 10);
	for (const auto& k : kernels) {
		CHECK(k["kernel"].get<std::string>().starts_with("attend"));
		CHECK(k["use"].get<std::string>().find(use) != std::string::npos);
	}
	args.resize(args.size() - 2);
	args.push_back("no such use");
	check_error(args, 2, {"'attend' (--kernel)", "'no such use' (--use)"});
}

TEST_CASE("T29 cli: an unknown option of one dash and several letters is refused by its whole name") {
	check_error({"run", "-hg", "x"}, 2, {"unknown option '-hg'", "kvrun run --help"});
	check_error({"run", "-hf", "x"}, 2, {"'x'", "USER/REPO[:QUANT]"});
	check_error({"run", "-nonsense"}, 2, {"unknown option '-nonsense'"});
	check_error({"run", "-nfoo", "-m", kModel}, 2, {"unknown option '-nfoo'"});
	check_error({"run", "-mfoo"}, 2, {"unknown option '-mfoo'"});
	check_error({"run", kModel, "-temp", "0"}, 2, {"'-temp'", "did you mean '--temp'?"});
	check_error({"bench", "-ngk", "4"}, 2, {"unknown option '-ngk'; see"});
	check_error({"-hf"}, 2, {"unknown option '-hf'", "kvrun --help"});
	check_error({"devices", "-ngl", "99"}, 2, {"unknown option '-ngl'"});
	check_error({"inspect", "-hh"}, 2, {"unknown option '-hh'"});
	// what follows an option that takes a value is its value
	check_error({"run", "-m", "-hf", "-p", "x"}, 3, {"-hf"});
}

TEST_CASE("cli: where weights lie: what is wrong with an option is one line") {
	const std::vector<std::string> run = {"run", kModel, "--device", "cpu", "-p", "x", "-n", "1"};
	const auto with = [&](std::vector<std::string> more) {
		more.insert(more.begin(), run.begin(), run.end());
		return more;
	};
	check_error(with({"-ngl", "-2"}), 2, {"--gpu-layers is '-2'", "expected a number from 0 to 100000, auto or all"});
	check_error(with({"--gpu-layers", "many"}), 2, {"--gpu-layers is 'many'"});
	check_error(with({"--n-cpu-moe", "-3"}), 2, {"--n-cpu-moe is '-3'"});
	check_error(with({"--cpu-moe", "--n-cpu-moe", "3"}), 2, {"--cpu-moe and --n-cpu-moe are both given"});
	check_error(with({"--fit", "--no-fit"}), 2, {"--fit and --no-fit are both given"});
	check_error(with({"--weights-budget", "some"}), 2, {"--weights-budget is 'some'"});
	check_error(with({"--weights-budget", "1K"}), 2, {"a weights budget of 1024 bytes", "norms, biases and routers"});
	// the cpu backend uses host memory: all options are accepted, and a line says that they move nothing
	const Ran r = run_program(with({"-ngl", "1", "--no-fit"}));
	CHECK(r.code == 0);
	CHECK(contains(r.err, "shares the host's memory"));
	for (const char* all : {"all", "auto", "99", "-1"})
		CHECK(!contains(run_program(with({"-ngl", all})).err, "shares"));
}

TEST_CASE("cli: llama.cpp's names mean the same; an option without effect says so once") {
	const std::vector<std::string> ours = {"run", "-m", kModel, "--device", "cpu",    "-p",  "Once upon a time",
	                                       "-n",  "6",  "-c",   "2048",     "--temp", "0.7", "--seed",
	                                       "3"};
	const Ran a = run_program(ours);
	CAPTURE(a.err);
	REQUIRE(a.code == 0);
	const Ran b = run_program({"run", kModel, "-dev", "cpu", "-p", "Once upon a time", "--n-predict", "6", "-c", "2k",
	                           "--temperature", "0.7", "-s", "3", "-ngl", "99", "-fa", "-t", "4"});
	CAPTURE(b.err);
	CHECK(b.code == 0);
	CHECK(b.out == a.out);
	for (const char* name : {"-fa", "-t"}) {
		const std::string says = fmt::format("warning: {} has no effect: ", name);
		CHECK(contains(b.err, says));
		CHECK(b.err.find(says) == b.err.rfind(says));
	}
	CHECK(!contains(a.err, "no effect"));
	// -fa takes a word or none; a number directly after a short option is its value
	for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
	         {"-fa", "on", "-n", "1", kModel}, {"-n1", "-fa", kModel}, {"--flash-attn", "auto", "-n=1", kModel}}) {
		std::vector<std::string> args = {"run", "-p", "x", "--device", "cpu"};
		args.insert(args.end(), more.begin(), more.end());
		const Ran r = run_program(args);
		CAPTURE(r.err);
		CHECK(r.code == 0);
		CHECK(contains(r.err, "# 1 tok"));
	}
	check_error({"run", "-m", kModel, "surplus.gguf", "-p", "x"}, 2, {"argument 'surplus.gguf'"});
	check_error({"run", kModel, "-p", "x", "-c", "128kB"}, 2, {"--ctx-size", "'128kB'", "like 4096 or 32k"});
	check_error({"run", kModel, "-p", "x", "-c", "17M"}, 2, {"'17M'"});
	check_error({"run", kModel, "-p", "x", "--kv-budget", "8GB"}, 2, {"'8GB'", "8GiB"});
	CHECK(run_program({"run", kModel, "--device", "cpu", "-p", "x", "-n", "1", "--kv-budget", "1GiB"}).code == 0);
	const Ran none = run_program({"run", kModel, "--device", "cpu", "-p", "x", "--kv-budget", "1K"});
	CHECK(none.code == 4);
	CHECK(contains(none.err, "a cache budget of 0.0 MiB holds no token: the first ones take "));
	const Ran full = run_program({"run", kModel, "--device", "cpu", "-p", "x", "--ignore-eos", "--kv-budget", "300K"});
	CHECK(full.code == 0);
	CHECK(contains(full.err, " tok, all that the cache's budget holds)  device ")); // and not the -c of anybody
	const std::vector<std::string> fetches = {"run",
	                                          kModel,
	                                          "--device",
	                                          "cpu",
	                                          "-p",
	                                          "x",
	                                          "-n",
	                                          "90",
	                                          "--ignore-eos",
	                                          "--kv",
	                                          "kivi2,fetch=4,recent_keep=8,flush=32",
	                                          "--host-budget",
	                                          "1K"};
	const Ran over = run_program(fetches);
	CHECK(over.code == 4);
	CHECK(contains(over.err, "raise --host-budget, or give --offload-dir"));
	std::vector<std::string> with_file = fetches;
	with_file.insert(with_file.end(), {"--offload-dir", "/tmp"});
	CHECK(contains(run_program(with_file).err, "% of attention in f16"));
	with_file.back() = "/nonexistent";
	check_error(with_file, 5, {"--offload-dir /nonexistent"});
}

TEST_CASE("T37 cli: sampling options outside their range end with 2 and say the range") {
	const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
	    {"--temp", {"-1", "-0.001", "nan", "inf", "1e30", "1e999", "warm"}},
	    {"--top-p", {"-0.1", "1.1", "nan", "-inf"}},
	    {"--min-p", {"2", "-1", "nan"}},
	    {"--top-k", {"-2", "1.5", "4294967296", "nan"}},
	    {"--repeat-penalty", {"inf", "-inf", "0", "nan", "-1"}},
	    {"--repeat-last-n", {"-2", "65537"}},
	    {"--typical", {"-0.1", "1.1", "nan"}},
	    {"--xtc-probability", {"-0.1", "2"}},
	    {"--dry-base", {"0.9", "x"}},
	    {"--dry-penalty-last-n", {"-2", "1.5"}},
	    {"--seed", {"-2", "9223372036854775808", "x"}},
	};
	for (const auto& [flag, values] : bad)
		for (const std::string& v : values)
			check_error({"run", "-m", kModel, "-p", "x", flag, v}, 2,
			            {flag, fmt::format("'{}'", v), "expected", " to "});
}

TEST_CASE("T37 cli: extreme values inside the range generate") {
	for (const std::vector<std::string>& more :
	     std::vector<std::vector<std::string>>{{"--temp", "1e-30"},
	                                           {"--temp", "1e6"},
	                                           {"--top-p", "0"},
	                                           {"--min-p", "1"},
	                                           {"--top-k", "4294967295"},
	                                           {"--dry-multiplier", "100", "--dry-sequence-breaker", "none"},
	                                           {"--typical", "0"},
	                                           {"--dynatemp-range", "1e6", "--dynatemp-exp", "100"},
	                                           {"--seed", "9223372036854775807"}}) {
		std::vector<std::string> args = {"run", "-m", kModel, "--device", "cpu", "-p", "Once upon a time", "-n", "3"};
		args.insert(args.end(), more.begin(), more.end());
		const Ran r = run_program(args);
		CAPTURE(more[0]);
		CAPTURE(r.err);
		CHECK(r.code == 0);
		CHECK(contains(r.err, "# 3 tok"));
	}
}

TEST_CASE("T29 cli: random arguments never crash and never hang") {
	const std::vector<std::string> words = {"run",   "bench",  "devices", "inspect", "tokenize",    "-m",   "-p",
	                                        "-n",    "--temp", "--json",  "--",      "-",           "--=",  "-1",
	                                        "nan",   "",       "=",       "--help=", "-hh",         "\xff", "[a,b]",
	                                        "-mfoo", "--stop", "--kv",    "[",       "]",           "\"",   "'a b'",
	                                        "-ub",   "@file",  "%n%s",    "\n",      "--ctx-size=7"};
	std::mt19937 rng(11);
	for (int i = 0; i < 300; ++i) {
		RunSpec spec;
		std::string shown;
		for (size_t n = rng() % 7; n > 0; --n) spec.args.push_back(words[rng() % words.size()]);
		for (const std::string& a : spec.args) shown += fmt::format("'{}' ", a);
		spec.timeout_s = 20;
		const Ran r = run_program(spec);
		CAPTURE(shown);
		CAPTURE(r.err);
		REQUIRE(!r.killed);
		REQUIRE(r.code >= 0);
		REQUIRE(r.code <= 6);
		REQUIRE(r.code != 1);
		if (r.code != 0) REQUIRE(contains(r.err, "error: "));
	}
}

TEST_CASE("cli: help and version go to stdout and end with 0") {
	for (const std::vector<std::string>& args :
	     std::vector<std::vector<std::string>>{{"--help"}, {"run", "--help"}, {"bench", "-h"}, {"--version"}}) {
		const Ran r = run_program(args);
		CHECK(r.code == 0);
		CHECK(r.err == "");
		CHECK(r.out.size() > 5);
	}
	CHECK(contains(run_program({"--help"}).out, "Exit codes:\n  0     ok\n"));
}

TEST_CASE("cli: files that are missing, no models, or have hostile names end with 3") {
	check_error({"run", "-m", "/nonexistent/model.gguf", "-p", "x"}, 3, {"/nonexistent/model.gguf"});
	check_error({"run", "-m", kRecord, "-p", "x"}, 3, {"record40.txt"});
	check_error({"run", "-m", kModel, "-f", "/nonexistent/prompt.txt"}, 3, {"/nonexistent/prompt.txt"});
	const TempFile pdf(std::string("%PDF-1.7\n1 0 obj\0", 18));
	for (const char* command : {"run", "chat", "embed"})
		check_error({command, "-m", kModel, "-f", pdf.path}, 3, {pdf.path, "is no text: it has zero bytes"});
	check_error({"run", "-m", "/nonexistent/\033[31m\nred\xff.gguf", "-p", "x"}, 3, {"\\x1b[31m", "\\xff"});
}

TEST_CASE("cli: a device nobody has ends with 4 and lists what there is") {
	check_error({"run", "-m", kModel, "-p", "x", "--device", "no-such-device"}, 4, {"no-such-device"});
}

TEST_CASE("cli: the record's line is found, and stdout holds the answer alone") {
	const Ran r = run_model({"-f", kRecord, "-n", "5"});
	CAPTURE(r.err);
	CHECK(r.code == 0);
	std::string expected = file_text(kRoot + "/models/bundled/record40.answer");
	expected.pop_back();
	CHECK(r.out == expected);
	CHECK(r.err.rfind("# running on a CPU device", 0) == 0); // the first line says so
	CHECK(contains(r.err, "\n# 5 tok"));
	CHECK(lines(r.err) == 2);
}

TEST_CASE("cli: --json is one object and the only thing on stdout") {
	const Ran r = run_model({"-f", kRecord, "-n", "5", "--json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["text"].get<std::string>() + "\n" == file_text(kRoot + "/models/bundled/record40.answer"));
	CHECK(j["tokens"].size() == 5);
	CHECK(j["stop_reason"] == "length");
	CHECK(j["prompt_tokens"].get<int>() > 600);
	CHECK(j["device"]["cpu"] == true);
	CHECK(j["kv"]["bytes"].get<int>() > 0);
	CHECK(j["timings"]["prefill_tok_s"].get<double>() > 0);
}

TEST_CASE("cli: same seed, same text; stop strings end it; --ignore-eos and -n are obeyed") {
	const auto story = [](std::vector<std::string> more) {
		std::vector<std::string> args = {"run", "-m", kModel, "--device", "cpu", "-p", "Once upon a time", "-n", "40"};
		args.insert(args.end(), more.begin(), more.end());
		return run_program(args).out;
	};
	const std::string one = story({"--seed", "5"});
	CHECK(one.size() > 20);
	CHECK(one == story({"--seed", "5"}));
	CHECK(one != story({"--seed", "6"}));
	const std::string stop = one.substr(one.size() / 2, 3);
	CHECK(story({"--seed", "5", "--stop", "never in it", "--stop", stop}) == one.substr(0, one.find(stop)));
}
