// --draft as a user sees it: run, chat and bench give the same answers, report the drafts, and refuse invalid options.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include <csignal>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace kvrun;

namespace {

const std::string kModel = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";
const std::string kTiny = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/";
const std::string kRepeats = "Lily was happy. Tom was sad. Lily was happy. Tom was sad. Lily was";

std::vector<std::string> run_args(const std::vector<std::string>& more) {
	std::vector<std::string> args = {"run", kModel,   "--device", "cpu", "-p", kRepeats,      "-n",
	                                 "50",  "--temp", "0.6",      "-s",  "9",  "--ignore-eos"};
	args.insert(args.end(), more.begin(), more.end());
	return args;
}

} // namespace

TEST_CASE("cli: run --draft prints the text that run prints, and how many drafts were right") {
	for (const char* kv : {"fp16", "kivi2,recent_keep=8,flush=32"}) {
		const Ran plain = run_program(run_args({"--kv", kv}));
		REQUIRE(plain.code == 0);
		CHECK(!contains(plain.err, "draft"));
		for (const std::vector<std::string>& how : {std::vector<std::string>{"--draft", "lookup"},
		                                            {"--draft", "lookup", "--draft-max", "1"},
		                                            {"--draft", kModel}}) {
			std::vector<std::string> args = run_args({"--kv", kv});
			args.insert(args.end(), how.begin(), how.end());
			const Ran r = run_program(args);
			CAPTURE(r.err);
			CHECK(r.code == 0);
			CHECK(r.out == plain.out);
			CHECK((contains(r.err, "  drafts ") && contains(r.err, " tok taken (")));
		}
	}
	const Ran r = run_program(run_args({"--draft", "lookup", "--json"}));
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["draft"]["draft_n"].get<int>() >= j["draft"]["draft_n_accepted"].get<int>());
	CHECK(j["draft"]["draft_n"].get<int>() > 0);
	CHECK(j["timings"]["decode_steps"] == 49); // number of tokens, in any number of steps
}

TEST_CASE("cli: --draft names what it cannot do") {
	check_error(run_args({"--draft", "nowhere.gguf"}), 3, {"nowhere.gguf"});
	check_error(run_args({"--draft", kTiny + "llama_q8_0.gguf"}), 2, {"llama_q8_0.gguf", "vocabulary", "300 tokens"});
	check_error(run_args({"--draft", "lookup", "--draft-max", "32"}), 2, {"--draft-max", "32"});
	check_error(run_args({"--draft", "lookup", "--kv", "specache2", "-q"}), 3, {"--draft", "fetches tokens"});
	const std::string recurrent = kTiny + "qwen35.gguf";
	check_error({"run", recurrent, "--device", "cpu", "-p", "a", "-n", "2", "--draft", recurrent, "-q"}, 3,
	            {"as a draft model", "recurrent layers"});
	check_error({"bench", kModel, "--device", "cpu", "-n", "0", "--draft", "lookup"}, 2, {"-n is 0"});
	check_error({"bench", kModel, "--device", "cpu", "-f", kModel}, 2, {"--file", "--draft"});
}

TEST_CASE("cli: --draft mtp gives the text without drafts; a file without the layer is refused by its key") {
	const std::string right = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/prediction/right.gguf";
	std::vector<std::string> args = {"run", right, "--device", "cpu",    "-p", "a b c",       "-n",
	                                 "40",  "-s",  "9",        "--temp", "0",  "--ignore-eos"};
	const Ran plain = run_program(args);
	REQUIRE(plain.code == 0);
	args.insert(args.end(), {"--draft", "mtp"});
	const Ran fast = run_program(args);
	CAPTURE(fast.err);
	CHECK(fast.code == 0);
	CHECK(fast.out == plain.out);
	CHECK(contains(fast.err, " tok taken (100.0 %)"));
	const Ran inspect = run_program({"inspect", right});
	CHECK(inspect.err == ""); // the layer's tensors are not called unused
	CHECK(contains(inspect.out, "prediction_layers 1"));
	const Ran bench =
	    run_program({"bench", right, "--device", "cpu", "-n", "24", "-r", "1", "--draft", "mtp", "-o", "json"});
	REQUIRE(bench.code == 0);
	CHECK(nlohmann::json::parse(bench.out)["results"][0]["draft_n_accepted"].get<int>() > 12);
	check_error({"run", kTiny + "qwen35.gguf", "--device", "cpu", "-p", "a", "--draft", "mtp", "-q"}, 3,
	            {"key qwen35.nextn_predict_layers is missing"});
	check_error(run_args({"--draft", "mtp", "-q"}), 3, {"architecture is llama", "prediction layers"});
}

TEST_CASE("cli: --draft with a file made for the model gives the text without drafts; that of another is refused") {
	struct Made {
		const char *model, *draft, *kv, *refused, *is;
	};
	const std::string folder = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/";
	for (const Made& m : {Made{"assistant/right.model.gguf", "assistant/right.gguf", "kivi4,group=32",
	                           "models of gemma4; this model is one of llama", "an assistant"},
	                      Made{"eagle/right.model.gguf", "eagle/right.gguf", "turbo4",
	                           "a model of 32 channels, this one has 256", "EAGLE-3 layers"},
	                      Made{"eagle/right.model.gguf", "dflash/right.gguf", "turbo4",
	                           "a model of 32 channels, this one has 256", "DFlash layers"}}) {
		CAPTURE(m.draft);
		std::vector<std::string> args = {
		    "run", folder + m.model, "--device", "cpu",          "-p",   "a b c", "-n", "40", "-s",
		    "9",   "--temp",         "0",        "--ignore-eos", "--kv", m.kv};
		const Ran plain = run_program(args);
		REQUIRE(plain.code == 0);
		args.insert(args.end(), {"-md", folder + m.draft}); // llama.cpp's name of the option
		const Ran fast = run_program(args);
		CAPTURE(fast.err);
		CHECK(fast.code == 0);
		CHECK(fast.out == plain.out);
		CHECK(contains(fast.err, " tok taken (100.0 %)"));
		const Ran bench = run_program({"bench", folder + m.model, "--device", "cpu", "-n", "24", "-r", "1", "--draft",
		                               folder + m.draft, "-o", "json"});
		REQUIRE(bench.code == 0);
		CHECK(nlohmann::json::parse(bench.out)["results"][0]["draft_n_accepted"].get<int>() > 12);
		check_error(run_args({"--draft", folder + m.draft, "-q"}), 2, {"right.gguf", m.refused});
		check_error({"run", folder + m.draft, "--device", "cpu", "-p", "a"}, 3, {m.is, "--draft"});
		const Ran inspect = run_program({"inspect", folder + m.draft});
		CHECK(inspect.code == 0);
		CHECK(contains(inspect.out, m.is));
	}
}

TEST_CASE("cli: bench --draft has both speeds, and tokens that are equal") {
	const std::vector<std::string> base = {"bench", kModel, "--device", "cpu",  "-n",         "24",      "-d",
	                                       "0,64",  "-r",   "2",        "--kv", "fp16,kivi2", "--draft", "lookup"};
	const Ran table = run_program(base);
	CAPTURE(table.err);
	CHECK(table.code == 0);
	for (const char* test : {"| tg24 | fp16 |", "| tg24 | kivi2 |", "| tg24 @ d64 | fp16 |", " equal |"})
		CHECK(contains(unaligned(table.out), test));
	std::vector<std::string> args = base;
	args.insert(args.end(), {"-o", "json"});
	const Ran r = run_program(args);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["draft"] == "lookup");
	CHECK(j["draft_max"] == 7);
	REQUIRE(j["results"].size() == 4);
	for (const auto& t : j["results"]) {
		CHECK(t["tok_s_plain"].size() == 2);
		CHECK(t["tok_s_drafts"].size() == 2);
		CHECK(t["ratio"].get<double>() > 0);
		CHECK(t["tokens_equal"] == true);
		CHECK(t["draft_n_accepted"].get<int>() <= t["draft_n"].get<int>());
	}
	const std::string shorter = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/record40.answer";
	const Ran refused =
	    run_program({"bench", kModel, "--device", "cpu", "-n", "2", "-d", "999", "--draft", "lookup", "-f", shorter});
	CHECK(refused.code == 2);
	CHECK((contains(refused.err, "error: --file has") && contains(refused.err, "999")));
	const std::string record = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/record40.txt";
	const Ran later = run_program({"bench", kModel, "--device", "cpu", "-n", "2", "-r", "1", "-d", "16,9999", "--draft",
	                               "lookup", "-f", record, "-o", "json"}); // the second test fails
	CHECK(later.code == 2);
	const auto kept = nlohmann::json::parse(later.out);
	CHECK(kept["results"].size() == 1);
	CHECK(contains(kept["error"].get<std::string>(), "a depth of 9999"));
	for (const std::vector<std::string>& other :
	     {std::vector<std::string>{"--sequences", "2"}, {"--fill"}, {"--ops"}, {"--peak", "100"}}) {
		std::vector<std::string> with = base;
		with.insert(with.end(), other.begin(), other.end());
		check_error(with, 2, {other[0], "--draft"});
	}
}

TEST_CASE("cli: Ctrl-C during bench --draft says that it was interrupted, and keeps what was finished") {
	Ran r;
	for (int wait_ms = 200; wait_ms <= 25600; wait_ms *= 2) { // until the first test is done
		RunSpec spec{.args = {"bench", kModel, "--device", "cpu", "-n", "4,1000", "-r", "20", "--draft", "lookup", "-o",
		                      "json"}};
		spec.signal = SIGINT, spec.signal_after_ms = wait_ms;
		r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 130);
		if (!r.out.empty() && !nlohmann::json::parse(r.out)["results"].empty()) break;
	}
	CHECK(contains(r.err, "interrupted; the results below cover"));
	CHECK(nlohmann::json::parse(r.out)["cancelled"] == true);
}

TEST_CASE("cli: chat --draft answers as chat does, and /stats says what was guessed") {
	const auto chat = [](const std::vector<std::string>& more) {
		std::vector<std::string> args = {"chat",   kModel, "--device", "cpu", "--chat-template", "chatml",
		                                 "--temp", "0",    "-n",       "20",  "--no-history"};
		args.insert(args.end(), more.begin(), more.end());
		return run_program({.args = args, .input = kRepeats + "\n" + kRepeats + "\n/stats\n"});
	};
	const Ran plain = chat({}), fast = chat({"--draft", "lookup"});
	CAPTURE(fast.err);
	REQUIRE(plain.code == 0);
	CHECK(fast.code == 0);
	CHECK(fast.out == plain.out);
	CHECK((contains(fast.err, "drafts ") || contains(fast.err, "no drafts")));
	CHECK(!contains(plain.err, "drafts"));
}
