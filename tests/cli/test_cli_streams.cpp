// The program as a user sees it: standard streams, contexts that are full, signals; rows of the fault table.
#include "tests/cli/checks.h"
#include "tests/cli/run_model.h"
#include "tests/support/assets.h"
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

using namespace kvrun;

TEST_CASE("T31 cli: the prompt from stdin, whatever is behind it") {
	const std::string record = file_text(kRecord);
	std::string answer = file_text(kRoot + "/models/bundled/record40.answer");
	answer.pop_back();
	CHECK(run_model({"-n", "5"}, record).out == answer);
	CHECK(run_model({"-n", "5", "-f", "-"}, record).out == answer);
	CHECK(run_model({"-n", "5"}, record.substr(0, record.size() - 1)).out == answer); // no newline at the end

	RunSpec closed = run_spec({"-n", "5"});
	closed.input = std::nullopt;
	const Ran r = run_program(closed);
	CHECK(r.code == 5);
	CHECK(contains(r.err, "error: standard input"));

	std::string binary;
	for (int i = 1; i < 256; ++i) binary += char(i);
	const Ran b = run_model({"-n", "2"}, binary);
	CAPTURE(b.err);
	CHECK(b.code == 0);
	const Ran zero = run_model({"-n", "2"}, binary + '\0');
	CHECK(zero.code == 3);
	CHECK(contains(zero.err, "error: standard input is no text: it has zero bytes"));

	const Ran huge = run_model({"-n", "2"}, std::string(size_t(65) << 20, 'x'));
	CHECK(huge.code == 6);
	CHECK(contains(huge.err, "67108864 bytes"));

	check_error({"run", "-m", kModel, "-f", kRoot}, 3, {"is a folder"});
}

TEST_CASE("T32 cli: a stdout that is gone, full or closed ends with 5 and keeps the statistics") {
	RunSpec spec = run_spec({"-p", "Once upon a time", "-n", "200", "--ignore-eos"});
	spec.out = Out::Gone;
	Ran r = run_program(spec);
	CAPTURE(r.err);
	CHECK(r.code == 5);
	CHECK(!contains(r.err, "error"));
	CHECK(contains(r.err, "# "));
	CHECK(contains(r.err, "tok/s"));
	CHECK(!contains(r.err, "# 200 tok")); // it stopped when the reader was gone

	for (const Out out : {Out::Full, Out::Closed}) {
		spec.out = out;
		r = run_program(spec);
		CHECK(r.code == 5);
		CHECK(contains(r.err, "error: standard output: "));
		CHECK(contains(r.err, "tok/s"));
		RunSpec json = run_spec({"-p", "Once", "-n", "2", "--json"});
		json.out = out;
		r = run_program(json);
		CHECK(r.code == 5);
		CHECK(contains(r.err, "error: standard output: "));
		RunSpec help{.args = {"--help"}};
		help.out = out;
		CHECK(run_program(help).code == 5);
	}
}

TEST_CASE("T32 cli: every command whose results cannot be written ends with 5 and says why") {
	for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
	         {"devices"},
	         {"devices", "--json"},
	         {"inspect", kModel},
	         {"inspect", kModel, "--json"},
	         {"tokenize", "-m", kModel},
	         {"plan", "-m", kModel, "--kv", "fp16"},
	         {"bench", "-m", kModel, "--device", "cpu", "-p", "2", "-n", "1", "-r", "1"}})
		for (const Out out : {Out::Full, Out::Closed}) {
			RunSpec spec{.args = args, .input = "some text"};
			spec.out = out;
			const Ran r = run_program(spec);
			CAPTURE(args[0]);
			CAPTURE(r.err);
			CHECK(r.code == 5);
			CHECK(contains(r.err, "error: standard output: "));
		}
}

TEST_CASE("T31 cli: a stdin that is closed is no text to tokenize") {
	RunSpec spec{.args = {"tokenize", "-m", kModel}, .input = std::nullopt};
	const Ran r = run_program(spec);
	CAPTURE(r.err);
	CHECK(r.code == 5);
	CHECK(contains(r.err, "error: standard input"));
}

TEST_CASE("T34 cli: a prompt longer than the context is refused with the counts, or cut when asked") {
	Ran r = run_model({"-f", kRecord, "-n", "5", "-c", "64"});
	CAPTURE(r.err);
	CHECK(r.code == 6);
	CHECK(r.out == "");
	CHECK(contains(r.err, " 64"));
	r = run_model({"-f", kRecord, "-n", "5", "-c", "64", "--truncate", "--json"});
	REQUIRE(r.code == 0);
	CHECK(contains(r.err, "warning: dropped the first "));
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["prompt_tokens"] == 59); // 64 minus the 5 tokens requested
	CHECK(j["stop_reason"] == "length");
}

TEST_CASE("T35 cli: an empty prompt continues from the begin-of-text token, and is refused where there is none") {
	Ran r = run_model({"-p", "", "-n", "4", "--json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(nlohmann::json::parse(r.out)["prompt_tokens"] == 1);
	r = run_model({"-p", "", "--no-bos", "-n", "4", "--json"});
	CHECK(r.code == 2);
	CHECK(r.out == "");
	CHECK(contains(r.err, "\nerror: the prompt has no tokens"));
	r = run_model({"-n", "4", "--json"}, "");
	CHECK(r.code == 0);
}

TEST_CASE("T36 cli: a context that fills up ends the answer and says so") {
	const Ran r = run_model({"-p", "Once upon a time", "-c", "32", "--ignore-eos", "--json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["stop_reason"] == "context");
	CHECK(j["prompt_tokens"].get<int>() + int(j["tokens"].size()) >= 32);
	CHECK(j["kv"]["tokens"] == 32);
}

TEST_CASE("T77 cli: Ctrl-C during the answer keeps the text so far and ends with 130") {
	RunSpec spec = run_spec({"-p", "Once upon a time", "--ignore-eos", "-c", "2048"});
	int sent = 0;
	spec.watch = [&](int pid, int, const std::string& out) {
		if (sent == 0 && contains(out, " ") && !contains(out, "# ")) kill(pid, SIGINT), ++sent;
	};
	const Ran r = run_program(spec);
	CAPTURE(r.err);
	CHECK(r.code == 130);
	CHECK(!r.killed);
	CHECK(sent == 1);
	CHECK(r.out.size() > 1);
	CHECK(contains(r.err, "end: cancelled"));
	CHECK(contains(r.err, "tok/s"));
}

TEST_CASE("T77 cli: Ctrl-C during the prompt reports it in JSON and ends with 130") {
	std::string text = file_text(kRecord);
	while (text.size() < 40000) text += text; // a prompt that takes seconds
	const TempFile prompt(text);
	Ran r;
	for (int attempt = 0; attempt < 20 && r.code != 130; ++attempt) { // before the prompt begins, a signal ends it
		RunSpec spec = run_spec({"-f", prompt.path, "--json", "-c", "32768"});
		spec.watch = [sent = false](int pid, int, const std::string& out) mutable { // the line about the CPU device
			if (!sent && contains(out, "# running on")) usleep(100'000), sent = kill(pid, SIGINT) == 0;
		};
		r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 130);
		if (r.out.empty()) r.code = -1;
	}
	REQUIRE(r.code == 130);
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["stop_reason"] == "cancelled");
	CHECK(j["tokens"].empty());
	CHECK(j["prompt_tokens"].get<int>() > 10000);
	CHECK(j["prompt_read"].get<int>() < j["prompt_tokens"].get<int>());
}

TEST_CASE("T77 cli: SIGINT and SIGTERM at random moments end the program in a defined way") {
	std::mt19937 rng(5);
	for (int i = 0; i < 12; ++i) {
		RunSpec spec = run_spec({"-f", kRecord, "--ignore-eos", "-n", "400"});
		const int sig = i % 2 ? SIGINT : SIGTERM;
		const int wait_ms = int(rng() % 400);
		spec.signal = sig;
		spec.signal_after_ms = wait_ms;
		const Ran r = run_program(spec);
		CAPTURE(wait_ms);
		CAPTURE(r.err);
		if (sig == SIGTERM)
			CHECK((r.code == 128 + SIGTERM || r.code == 0));
		else
			CHECK((r.code == 130 || r.code == 0));
	}
}
