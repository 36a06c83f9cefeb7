// Command lines of llama.cpp: options that mean the same, and those that are taken without effect.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <array>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;

namespace {

const std::string kRoot = KVRUN_SOURCE_DIR;
const std::string kModel = kRoot + "/models/bundled/recall-4m-f16.gguf";
const std::vector<std::string> kRun = {"run", kModel, "--device", "cpu", "--temp", "0", "-n", "4"};

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
	a.insert(a.end(), b.begin(), b.end());
	return a;
}
Ran run(const std::vector<std::string>& more) { return run_program(with(kRun, more)); }
nlohmann::json answer(std::vector<std::string> more) {
	more.push_back("--json");
	const Ran r = run(more);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	return nlohmann::json::parse(r.out);
}

} // namespace

TEST_CASE("compat: -ctk and -ctv alone, and types that kvrun has not") {
	struct Row {
		std::vector<std::string> given;
		const char *policy, *says;
	};
	for (const Row& row :
	     std::vector<Row>{{{"-ctk", "q8_0"}, "rtn8", "# values are stored at 8 bits"},
	                      {{"-ctv", "q8_0"}, "rtn8", "# keys are stored at 8 bits"},
	                      {{"-ctk", "q4_0", "-ctv", "f16"}, "rtn4,k.bits=4,v.bits=8", "# values are stored at 8 bits"},
	                      {{"-ctk", "q5_0", "-ctv", "q5_1"}, "rtn8", "-ctk q5_0 is stored as 8 bits"},
	                      {{"-ctk", "bf16"}, "fp16", "-ctk bf16 is stored as f16"}}) {
		CAPTURE(row.policy);
		CHECK(answer(with({"-p", "x"}, row.given))["kv"]["policy"] == row.policy);
		const std::string err = run(with({"-p", "x"}, row.given)).err;
		CHECK(contains(err, row.says));
		CHECK(err.find(row.says) == err.rfind(row.says));
		CHECK(!contains(run(with({"-p", "x", "-q"}, row.given)).err, row.says));
	}
	check_error(with(kRun, {"-p", "x", "-ctk", "q9"}), 2, {"-ctk is 'q9'", "q8_0"});
	check_error(with(kRun, {"-p", "x", "-ctk", "q8_0", "--kv", "kivi2"}), 2, {"--kv kivi2 and -ctk/-ctv", "give one"});
}

TEST_CASE("compat: options without effect, in every command that loads or plans a model") {
	const std::vector<std::string> none = {
	    "--jinja",     "-fa", "on",      "-t",        "4",           "-tb",        "4",
	    "-b",          "512", "--mlock", "--no-mmap", "--no-warmup", "--color",    "auto",
	    "-nkvo",       "-sm", "layer",   "-mg",       "0",           "--no-jinja", "--no-display-prompt",
	    "--draft-min", "1"};
	for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
	         {"run", kModel, "--device", "cpu", "-p", "x", "-n", "1"},
	         {"chat", kModel, "--device", "cpu", "--chat-template", "chatml", "-n", "1"},
	         {"embed", kModel, "--device", "cpu", "-p", "x"},
	         {"plan", kModel, "--memory", "1G"},
	         {"bench", kModel, "--device", "cpu", "-p", "1", "-n", "1", "-r", "1"},
	         {"eval", kModel, "--device", "cpu", "--task", "recall", "--samples", "1", "--lines", "2"}}) {
		CAPTURE(command[0]);
		const Ran r = run_program(with(command, none));
		CAPTURE(r.err);
		CHECK(r.code == 0);
		CHECK(contains(r.err, "warning: -fa has no effect: attention is always fused"));
		CHECK(contains(r.err, "warning: --mlock has no effect"));
		CHECK(contains(r.err, "warning: --no-warmup has no effect") == (command[0] != "bench")); // bench has its own
		CHECK(r.err.find("-tb has no") == r.err.rfind("-tb has no"));
	}
	const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); }; // no free memory
	CHECK(first_line(run_program({"run", "--list-devices"}).out) == first_line(run_program({"devices"}).out));
	check_error({"run", "-hf", "nobody/nothing-here", "-p", "x", "--offline"}, 5, {"--offline", "HF_HUB_OFFLINE"});
	check_error({"run", kModel, "-hff", "x.gguf", "-p", "x"}, 2, {"--hf-"});
}

TEST_CASE("compat: options that kvrun has not are refused with what does the same") {
	const std::vector<std::array<std::string, 2>> rows = {{"-ot", "--n-cpu-moe"},
	                                                      {"--override-tensor", "--weights-budget"},
	                                                      {"--rope-scaling", "as the model's file says"},
	                                                      {"--prompt-cache", "kvrun chat --chat NAME"},
	                                                      {"--context-shift", "--on-full drop-oldest"},
	                                                      {"-hft", "HF_TOKEN"},
	                                                      {"-mu", "-hf USER/REPO"},
	                                                      {"--log-file", "2> FILE"},
	                                                      {"--check-tensors", "kvrun inspect FILE --check"},
	                                                      {"--reasoning-budget", "--no-think"},
	                                                      {"--spec-type", "--draft lookup"},
	                                                      {"--host", "kvrun serve"},
	                                                      {"-cl", "kvrun list"}};
	for (const auto& [option, says] : rows)
		check_error({"run", kModel, "-p", "x", option, "1"}, 2,
		            {fmt::format("unknown option '{}': ", option), says, "see kvrun run --help"});
	// without effect, whatever their value
	const Ran r = run({"-p",
	                   "x",
	                   "-C",
	                   "ff",
	                   "-Cr",
	                   "0-3",
	                   "--poll",
	                   "50",
	                   "--repack",
	                   "-dt",
	                   "0.1",
	                   "--log-prefix",
	                   "--log-colors",
	                   "off",
	                   "-td",
	                   "4",
	                   "-ngld",
	                   "99",
	                   "-cram",
	                   "100",
	                   "--no-mmproj-offload",
	                   "-nocb",
	                   "-no-kvu",
	                   "--spec-draft-n-min",
	                   "1"});
	CAPTURE(r.err);
	CHECK(r.code == 0);
	CHECK(size_t(std::count(r.err.begin(), r.err.end(), '\n')) >= 14);
	for (const std::vector<std::string>& fit : std::vector<std::vector<std::string>>{{"-fit", "on"},
	                                                                                 {"--fit", "off"},
	                                                                                 {"--no-mmproj-auto"},
	                                                                                 {"-fit"},
	                                                                                 {"--fit=on"},
	                                                                                 {"-sp"},
	                                                                                 {"--spec-draft-n-max", "4"}})
		CHECK(run(with({"-p", "x"}, fit)).code == 0);
	check_error(with(kRun, {"-p", "x", "-fit", "on", "--no-fit"}), 2, {"--fit and --no-fit are both given"});
	check_error(with(kRun, {"-p", "x", "--fit", "off", "-fitt", "1"}), 2, {"-fitt"});
}

TEST_CASE("compat: a command line without a command, and an empty file name of a variable") {
	check_error({"-m", kModel, "-p", "x"}, 2, {"'-m' in front of a command", "kvrun run"});
	check_error({kModel}, 2, {"kvrun chat " + kModel});
	check_error(with(kRun, {"-f", ""}), 2, {"--file is empty"});
	check_error({"run", kModel, "-p", "x", "-r"}, 2, {"--stop needs a value; see kvrun run --help"});
	const Ran bench = run_program({"bench", kModel, "--device", "cpu", "-p", "4", "-n", "0", "-r", "1", "--json"});
	CHECK(nlohmann::json::parse(bench.out)["results"].size() == 1);
}

TEST_CASE("compat: serve does not start where its key is empty") {
	for (const char* key : {"", " ", ",", " , "})
		check_error({"serve", kModel, "--device", "cpu", "--port", "0", "--api-key", key}, 2, {"--api-key has no key"});
}

TEST_CASE("compat: nothing of another meaning is suggested") {
	for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"devices", "-cnv"},
	                                                                                   {"inspect", "--keep"},
	                                                                                   {"run", "-stt"},
	                                                                                   {"devices", "--no-json"},
	                                                                                   {"run", "-ctx", "5"}}) {
		CAPTURE(words[1]);
		const Ran r = run_program(words);
		CHECK(r.code == 2);
		CHECK(contains(r.err, fmt::format("unknown option '{}'; see ", words[1])));
	}
	CHECK(contains(run_program({"run", "--mdoel", "x"}).err, "did you mean '--model'?"));
}

TEST_CASE("compat: escapes in -p and --stop, as llama-cli reads them") {
	const auto tokens = [](std::vector<std::string> more) {
		return answer(std::move(more))["prompt_tokens"].get<int>();
	};
	const int line = tokens({"-p", "One\ntwo\tthree", "--no-escape"}); // C++'s escapes: the characters themselves
	CHECK(tokens({"-p", "One\\ntwo\\tthree"}) == line);
	CHECK(tokens({"-p", "One\\x0atwo\\tthree", "-e"}) == line);
	CHECK(tokens({"-p", "One\\ntwo\\tthree", "--no-escape"}) > line);
	CHECK(tokens({"-p", "a\\qb\\"}) == tokens({"-p", "a\\qb\\", "--no-escape"})); // other backslashes stay
	CHECK(answer({"-p", "Once upon a time\\n", "--stop", "a"})["stop_reason"] == "stop");
}

TEST_CASE("compat: numbers that llama.cpp reads in its own way") {
	const nlohmann::json plain = answer({"-p", "Once upon a time"});
	for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
	         {"--top-k", "-1"}, {"--repeat-last-n", "-1"}, {"-ngl", "-1"}, {"-s", "-1"}, {"-s", "4294967295"}})
		CHECK(answer(with({"-p", "Once upon a time"}, more))["tokens"] == plain["tokens"]);
	CHECK(answer({"-p", "x", "-s", "4294967295"})["seed"] != answer({"-p", "x", "-s", "4294967295"})["seed"]);
	const std::vector<std::string> full = {"run", kModel, "--device", "cpu", "-p", "a b c", "-c", "24", "--ignore-eos"};
	for (const char* n : {"-1", "-2"}) CHECK(contains(run_program(with(full, {"-n", n})).err, "end: context (24 tok)"));
}

TEST_CASE("compat: --logit-bias and --samplers") {
	const nlohmann::json plain = answer({"-p", "Once upon a time"});
	const uint32_t first = plain["tokens"][0];
	CHECK(answer({"-p", "Once upon a time", "--logit-bias", fmt::format("{}-inf", first)})["tokens"][0] != first);
	CHECK(answer({"-p", "Once upon a time", "--logit-bias", "77+100"})["tokens"][0] == 77);
	for (const char* bad : {"77", "x+1", "77+", "77+x", "77*2", "+1"})
		check_error(with(kRun, {"-p", "x", "--logit-bias", bad}), 2, {"--logit-bias is", bad, "15043+1"});
	CHECK(run({"-p", "x", "--logit-bias", "99999+1"}).code == 2);

	const std::vector<std::string> hot = {"-p", "Once upon a time", "--temp", "2", "-s", "5", "--json"};
	const std::vector<std::string> warm = {"run", kModel, "--device", "cpu", "-n", "12"};
	const auto text = [&](const std::vector<std::string>& more) {
		return run_program(with(with(warm, hot), more)).out;
	};
	const auto said = [&](const std::vector<std::string>& more) { return nlohmann::json::parse(text(more))["tokens"]; };
	CHECK(said({"--samplers", "top_k;temperature", "--top-k", "3"}) ==
	      said({"--top-k", "3", "--top-p", "1", "--min-p", "0"}));
	CHECK(said({"--samplers", "min_p;temp"}) == said({"--top-k", "0", "--top-p", "1"}));
	check_error(with(kRun, {"-p", "x", "--samplers", "temperature;top_k"}), 2, {"one order", "penalties;dry;"});
	check_error(with(kRun, {"-p", "x", "--samplers", "top_x"}), 2, {"'top_x'", "top_k"});
	CHECK(said({"--sampler-seq", "kt", "--top-k", "3"}) == said({"--samplers", "top_k;temperature", "--top-k", "3"}));
	CHECK(said({"--sampler-seq", "edskypmxt"}) == said({}));
	check_error(with(kRun, {"-p", "x", "--sampler-seq", "tk"}), 2, {"one order"});
	check_error(with(kRun, {"-p", "x", "--sampler-seq", "kz"}), 2, {"'kz'", "edskypmxt"});
	check_error(with(kRun, {"-p", "x", "--sampler-seq", "k", "--samplers", "top_k"}), 2, {"both given"});
}

TEST_CASE("compat: of an option that is given twice the last value counts; devices by llama.cpp's names") {
	const Ran twice = run({"-p", "Once", "-n", "3", "-n", "4", "--json"});
	CHECK(nlohmann::json::parse(twice.out)["tokens"].size() == 4);
	CHECK(contains(twice.err, "warning: --predict is given 3 times; the last one counts")); // kRun has one, too
	check_error({"run", "-m", kModel, "-m", kModel, "-p", "x"}, 2, {"--model is given 2 times"});

	const nlohmann::json none =
	    nlohmann::json::parse(run_program({"run", kModel, "-dev", "none", "-p", "x", "-n", "1", "--json"}).out);
	CHECK(none["device"]["name"] == answer({"-p", "x", "-n", "1"})["device"]["name"]);
	check_error({"run", kModel, "-p", "x", "-dev", "Vulkan99"}, 4, {"vulkan:99"});
	check_error({"run", kModel, "-p", "x", "--kv", "KIVI2"}, 2, {"no KV policy 'KIVI2'; did you mean kivi2?"});
}

TEST_CASE("compat: --chat-template-kwargs") {
	const TempFolder folder;
	const std::string file = (folder.path / "t.jinja").string();
	std::ofstream(file) << "{{ word }}{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }}";
	const std::vector<std::string> chat = {"-p", "x", "--chat", "--chat-template", file};
	const auto tokens = [&](const std::vector<std::string>& more) {
		return answer(with(chat, more))["prompt_tokens"].get<size_t>();
	};
	CHECK(tokens({"--chat-template-kwargs", R"({"word": "a b c d e f"})"}) > tokens({}) + 3);
	CHECK(tokens({"--chat-template-kwargs", R"({"word": "a"})", "--no-think"}) > // "False" as well
	      tokens({"--chat-template-kwargs", R"({"word": "a"})"}));
	for (const char* bad : {"{", "[1]", "x"})
		check_error(with(kRun, with(chat, {"--chat-template-kwargs", bad})), 2, {"--chat-template-kwargs"});
	check_error(with(kRun, {"-p", "x", "--chat-template-kwargs", "{}"}), 2, {"--chat-template-kwargs needs --chat"});

	RunSpec talk;
	talk.args = {"chat", kModel, "--device", "cpu", "--temp", "0", "-n", "4", "--chat-template", file, "-v"};
	talk.env = {{"XDG_STATE_HOME", folder.path.string()}};
	talk.input = "x\n";
	const std::string plain = run_program(talk).err;
	talk.args.insert(talk.args.end(), {"--chat-template-kwargs", R"({"word": "a b c d e f"})"});
	const Ran more = run_program(talk);
	CHECK(more.code == 0);
	const auto read = [](const std::string& said) { // "last answer: N tok read"
		const std::string_view before = "last answer: ";
		const size_t at = said.find(before);
		return at == said.npos ? 0 : std::stoul(said.substr(at + before.size()));
	};
	CHECK(read(plain) > 0);
	CHECK(read(more.err) > read(plain) + 3);
}

TEST_CASE("compat: --keep, and options that say that they change nothing") {
	std::string words;
	for (int i = 0; i < 200; ++i) words += fmt::format("word{} ", i);
	const Ran kept = run({"-p", words, "-c", "64", "--truncate", "--keep", "8"});
	CHECK(kept.code == 0);
	CHECK(contains(kept.err, "behind 9, kept 60")); // with the begin-of-text token
	CHECK(contains(run({"-p", "x", "--keep", "8"}).err, "warning: --keep has no effect"));
	CHECK(contains(run({"-p", "x", "--draft-max", "8"}).err, "warning: --draft-max has no effect"));
	CHECK(contains(run({"-p", "x", "--mirostat", "2", "--top-k", "5"}).err, "warning: --top-k has no effect"));
	CHECK(contains(run_program({"embed", kModel, "--device", "cpu", "-p", "x", "-n", "2"}).err, "--top has no effect"));
}

TEST_CASE("compat: synth asks before it writes over a file") {
	const TempFolder folder;
	const std::vector<std::string> synth = {"synth",
	                                        "--like",
	                                        "qwen3-0.6b",
	                                        "--shape",
	                                        "layers=1,dim=64,vocab=1024",
	                                        "-o",
	                                        (folder.path / "m.gguf").string()};
	CHECK(run_program(synth).code == 0);
	check_error(synth, 2, {"m.gguf is there already", "--force"});
	CHECK(run_program(with(synth, {"--force"})).code == 0);
}

TEST_CASE("compat: a missing input file ends with 3, before the model is read") {
	const std::string none = "/nowhere/none";
	for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
	         {"run", kModel, "-f", none},
	         {"bench", kModel, "--draft", "lookup", "-f", none},
	         {"eval", kModel, "-f", none},
	         {"eval", kModel, "--task", none},
	         {"tune", kModel, "-f", none},
	         {"embed", kModel, "-f", none},
	         {"replay", "--kv", "kivi2", "--q", none, "--k", none, "--v", none, "--dq", none, "--out", "/tmp"},
	         {"compare", "-m", kModel, "--text", none},
	         {"run", kModel, "-p", "x", "--lora", none}}) {
		CAPTURE(more[0]);
		const Ran r = run_program(with(more, {"--device", "cpu"}));
		CAPTURE(r.err);
		CHECK(r.code == 3);
		CHECK(lines(r.err) == 1);
	}
}
