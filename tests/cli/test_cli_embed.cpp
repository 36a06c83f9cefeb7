// kvrun embed as a user sees it: vectors, ranked texts, and what it refuses.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <cmath>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace kvrun;
using Json = nlohmann::json;

namespace {

const std::string kModel = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";
const std::string kEncoders = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/encoder/";

std::vector<std::string> embed_args(const std::string& model, const std::vector<std::string>& more) {
	std::vector<std::string> args = {"embed", model, "--device", "cpu"};
	args.insert(args.end(), more.begin(), more.end());
	return args;
}

std::vector<std::vector<double>> numbers(const std::string& out) {
	std::vector<std::vector<double>> rows;
	std::istringstream in(out);
	for (std::string line; std::getline(in, line);) {
		std::istringstream words(line);
		rows.emplace_back();
		for (double x; words >> x;) rows.back().push_back(x);
	}
	return rows;
}

double length(const std::vector<double>& v) {
	double sum = 0;
	for (const double x : v) sum += x * x;
	return std::sqrt(sum);
}

} // namespace

TEST_CASE("cli: embed prints a vector of length 1 for each text, of any kind of model") {
	for (const std::string& model : {kEncoders + "bert.gguf", kEncoders + "gemma_embedding.gguf", kModel}) {
		const Ran r = run_program(embed_args(model, {"-p", "hello world", "-p", "a house"}));
		CAPTURE(r.err);
		REQUIRE(r.code == 0);
		const auto rows = numbers(r.out);
		REQUIRE(rows.size() == 2);
		for (const auto& v : rows) CHECK(std::abs(length(v) - 1) < 1e-5);
		CHECK(rows[0] != rows[1]);
		CHECK((contains(r.err, "2 texts  ") && contains(r.err, " tok/s)")));
		CHECK(run_program(embed_args(model, {"-p", "a", "-q"})).err == "");
		const Json j = Json::parse(run_program(embed_args(model, {"-p", "a house", "--json"})).out);
		REQUIRE(j["embeddings"].size() == 1);
		CHECK(j["dimensions"] == rows[1].size());
		CHECK(j["tokens"].get<int>() >= 2);
		for (size_t i = 0; i < rows[1].size(); ++i)
			CHECK(std::abs(j["embeddings"][0][i].get<double>() - rows[1][i]) < 1e-6);
		const auto raw = numbers(run_program(embed_args(model, {"-p", "a house", "--raw"})).out);
		for (size_t i = 0; i < raw[0].size(); ++i) CHECK(std::abs(raw[0][i] / length(raw[0]) - rows[1][i]) < 1e-5);
		const auto few = numbers(run_program(embed_args(model, {"-p", "a house", "--dimensions", "8"})).out);
		REQUIRE(few[0].size() == 8);
		CHECK(std::abs(length(few[0]) - 1) < 1e-5);
		CHECK(std::abs(few[0][3] / few[0][0] - rows[1][3] / rows[1][0]) < 1e-3 * std::abs(rows[1][3] / rows[1][0]));
		CHECK(numbers(run_program(embed_args(model, {"-p", "a house", "--pooling", "first"})).out) !=
		      numbers(run_program(embed_args(model, {"-p", "a house", "--pooling", "last"})).out));
	}
}

TEST_CASE("cli: embed takes lines of a file or of standard input") {
	const TempFolder folder;
	const std::string file = (folder.path / "lines.txt").string();
	std::ofstream(file, std::ios::binary) << "hello world\r\n\n a house\nlast";
	const std::string model = kEncoders + "bert.gguf";
	const Ran each = run_program(embed_args(model, {"-p", "hello world", "-p", " a house", "-p", "last"}));
	REQUIRE(lines(each.out) == 3);
	const auto piped = [&](const std::vector<std::string>& more) {
		return run_program(RunSpec{.args = embed_args(model, more), .input = "hello world\n a house\nlast\n"});
	};
	CHECK(run_program(embed_args(model, {"-f", file})).out == each.out);
	CHECK(piped({}).out == each.out);
	CHECK(piped({"-f", "-"}).out == each.out);
	CHECK(lines(run_program(embed_args(model, {"-p", "x", "-f", file})).out) == 4);
}

TEST_CASE("cli: embed names a text that is too long before any is encoded, or cuts it off") {
	const TempFolder folder;
	const std::string file = (folder.path / "lines.txt").string(), model = kEncoders + "bert.gguf"; // 64 tokens
	const auto words = [](size_t n) {
		std::string text;
		for (size_t i = 0; i < n; ++i) text += "a ";
		return text;
	};
	std::ofstream(file) << "hello world\n\n" << words(100) << "\nlast\n";
	for (const char* form : {"--raw", "--json"}) {
		const Ran r = run_program(embed_args(model, {"-f", file, form}));
		CAPTURE(r.err);
		CHECK(r.code == 6);
		CHECK(r.out == "");
		CHECK(contains(r.err, "error: line 3 of " + file + " has 102 tokens, the model takes 64;"));
		CHECK(contains(r.err, "--truncate"));
	}
	CHECK(contains(run_program(embed_args(model, {"-p", "a", "-p", words(100)})).err, "error: text 2 has 102 tokens"));
	CHECK(contains(run_program(embed_args(model, {"-p", "a", "--query", words(100)})).err, "the query has 102 tokens"));
	check_error(embed_args(model, {"-p", "a", "--query", ""}), 2, {"--query is empty"});
	const Ran cut = run_program(embed_args(model, {"-f", file, "--truncate"}));
	CHECK(cut.code == 0);
	const auto rows = numbers(cut.out), whole = numbers(run_program(embed_args(model, {"-p", words(62)})).out);
	REQUIRE(rows.size() == 3);
	for (size_t i = 0; i < whole[0].size(); ++i) CHECK(std::abs(rows[1][i] - whole[0][i]) < 1e-6);

	const std::vector<std::string> ask = {"-p", "a", "-p", words(100), "--query", "hello world"};
	std::vector<std::string> args = embed_args(kEncoders + "bert_reranker.gguf", ask);
	const Ran refused = run_program(args);
	CHECK(refused.code == 6);
	CHECK(contains(refused.err, "text 2 of 2 has "));
	args.push_back("--truncate");
	CHECK(lines(run_program(args).out) == 2);
}

TEST_CASE("cli: embed writes vectors as they come, and keeps them at Ctrl-C") {
	const TempFolder folder;
	const std::string file = (folder.path / "lines.txt").string(), model = kEncoders + "bert.gguf";
	std::ofstream out(file);
	for (int i = 0; i < 300; ++i) out << (i % 2 ? "hello world\n" : "a house\n");
	out.flush();
	const auto rows = numbers(run_program(embed_args(model, {"-f", file})).out);
	const Json all = Json::parse(run_program(embed_args(model, {"-f", file, "--json"})).out);
	REQUIRE(rows.size() == 300);
	REQUIRE(all["embeddings"].size() == 300);
	for (size_t i = 0; i < 300; ++i) CHECK(std::abs(rows[i][0] - all["embeddings"][i][0].get<double>()) < 1e-6);

	if (needs_posix("SIGINT while it writes")) return;
	for (int i = 0; i < 4000; ++i) { // takes much longer than the first ones
		for (int w = 0; w < 60; ++w) out << "a ";
		out << "\n";
	}
	out.close();
	RunSpec spec{.args = embed_args(model, {"-f", file, "-q"})};
	bool sent = false;
	spec.watch = [&](int pid, int, const std::string& shown) {
		if (!sent && !shown.empty()) sent = kill(pid, SIGINT) == 0;
	};
	const Ran r = run_program(spec);
	CHECK(r.code == 130);
	CHECK(lines(r.out) >= 256);
	CHECK(lines(r.out) % 256 == 0);
	CHECK(lines(r.out) < 4300);
}

TEST_CASE("cli: embed --query prints the texts that answer best first") {
	const std::vector<std::string> texts = {"-p", "the cat sat", "-p", "hello world", "-p", "a dog"};
	for (const char* name : {"bert", "bert_reranker", "qwen3_reranker"}) {
		std::vector<std::string> args = embed_args(kEncoders + name + ".gguf", texts);
		args.insert(args.end(), {"--query", "hello world", "--json"});
		const Json j = Json::parse(run_program(args).out)["results"];
		REQUIRE(j.size() == 3);
		for (size_t i = 1; i < 3; ++i) CHECK(j[i - 1]["score"].get<double>() >= j[i]["score"].get<double>());
		if (std::string(name) == "bert") { // a text is most like itself
			CHECK(j[0]["text"] == "hello world");
			CHECK(j[0]["index"] == 1);
			CHECK(std::abs(j[0]["score"].get<double>() - 1) < 1e-5);
		}
		args.back() = "-n";
		args.push_back("2");
		const Ran r = run_program(args);
		CHECK(lines(r.out) == 2);
		CHECK(contains(r.out, "\t" + j[0]["text"].get<std::string>() + "\n"));
	}
}

TEST_CASE("cli: embed names what it cannot do; other commands refuse models that encode") {
	const std::string bert = kEncoders + "bert.gguf";
	check_error(embed_args("nowhere.gguf", {"-p", "a"}), 3, {"nowhere.gguf"});
	check_error(embed_args(bert, {"-f", "nowhere.txt"}), 3, {"nowhere.txt"});
	check_error(embed_args(bert, {"-p", "a", "--dimensions", "100000", "-q"}), 2, {"--dimensions is 100000"});
	check_error(embed_args(bert, {"-p", "a", "--pooling", "most"}), 2, {"--pooling", "most"});
	for (const char* command : {"run", "bench", "plan", "eval", "chat"}) {
		std::vector<std::string> args = {command, bert, "--device", "cpu"};
		if (command == std::string("run")) args.insert(args.end(), {"-p", "a"});
		if (command == std::string("eval"))
			args.insert(args.end(), {"-f", std::string(KVRUN_SOURCE_DIR) + "/README.md"});
		check_error(args, 3, {"bert.gguf", "encodes texts", "kvrun embed"});
	}
}
