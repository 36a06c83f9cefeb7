// Help, man pages and completions as a user sees them: they agree with the tree of commands.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <map>
#include <set>
#include <sstream>

using namespace kvrun;

namespace {

const std::vector<std::string> kCommands = {"run",      "chat",   "serve", "bench", "devices",    "plan", "inspect",
                                            "tokenize", "replay", "eval",  "tune",  "completion", "help"};

std::string output(std::vector<std::string> args, const std::string& columns = "80") {
	const Ran r = run_program({.args = std::move(args), .env = {{"COLUMNS", columns}}});
	CAPTURE(r.err);
	CHECK(r.code == 0);
	CHECK(r.err == "");
	return r.out;
}

std::vector<std::string> lines_of(const std::string& text) {
	std::vector<std::string> out;
	std::istringstream in(text);
	for (std::string line; std::getline(in, line);) out.push_back(line);
	return out;
}

// Names of options in a help text: words of its left column that begin with a dash.
std::set<std::string> options_in(const std::string& help) {
	std::set<std::string> out;
	for (const std::string& line : lines_of(help)) {
		if (!line.starts_with("  -")) continue;
		std::istringstream words(line.substr(0, line.find("  ", 3)));
		for (std::string word; words >> word;) {
			if (word.ends_with(',')) word.pop_back();
			if (word[0] == '-') out.insert(word);
		}
	}
	return out;
}

// All commands that the program lists, and those below them.
std::vector<std::vector<std::string>> all_commands() {
	std::vector<std::vector<std::string>> out = {{"config", "show"}, {"compare", "merge"}};
	bool listed = false;
	for (const std::string& line : lines_of(output({"--help"}))) {
		if (listed && line.empty()) break;
		if (listed && line.starts_with("  ") && line[2] != ' ') out.push_back({line.substr(2, line.find(' ', 2) - 2)});
		listed |= line == "Commands:";
	}
	return out;
}

// Long names of flags in a help text: lines whose left column has nothing but names.
std::set<std::string> flags_in(const std::string& help) {
	std::set<std::string> out;
	for (const std::string& line : lines_of(help.substr(0, help.find("\nAccepted from llama.cpp")))) {
		if (!line.starts_with("  -")) continue;
		std::istringstream words(line.substr(0, line.find("  ", 3)));
		std::set<std::string> names;
		bool flag = true;
		for (std::string word; words >> word;) {
			if (word.ends_with(',')) word.pop_back();
			flag &= word[0] == '-';
			if (word.starts_with("--")) names.insert(word);
		}
		if (flag) out.merge(names);
	}
	out.erase("--help");
	return out;
}

std::string plain_dashes(const std::string& roff) { // "\\-" is "-"
	std::string out;
	for (size_t i = 0; i < roff.size(); ++i)
		if (roff[i] != '\\' || i + 1 == roff.size() || roff[i + 1] != '-') out += roff[i];
	return out;
}

} // namespace

TEST_CASE("help: wraps to the width it is given, from narrow to wide") {
	for (const size_t columns : {40, 60, 80, 120}) {
		CAPTURE(columns);
		std::vector<std::vector<std::string>> all = {{"--help"}};
		for (const std::string& c : kCommands) all.push_back({c, "--help"});
		for (const auto& args : all)
			for (const std::string& line : lines_of(output(args, std::to_string(columns)))) {
				CAPTURE(line);
				// a word longer than the line is not split; nor are command lines of examples
				const bool one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;
				const bool example = contains(line, "kvrun ");
				CHECK((line.size() <= columns || one_word || example || line.starts_with("  -")));
				CHECK((line.empty() || line.back() != ' '));
			}
	}
	const auto widest = [](const std::string& text) {
		size_t n = 0;
		for (const std::string& line : lines_of(text)) n = std::max(n, line.size());
		return n;
	};
	CHECK(widest(output({"run", "--help"}, "120")) > 100); // the width of a wide terminal is used
	CHECK(output({"run", "--help"}, "7") == output({"run", "--help"}, "40"));
	CHECK(output({"run", "--help"}, "x") == output({"run", "--help"}, "80"));
}

TEST_CASE("help: a terminal says its width itself" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	for (const unsigned short columns : {50, 100}) {
		RunSpec spec{.args = {"run", "--help"}};
		spec.terminal = Terminal{columns, "xterm"};
		std::string out = run_program(spec).out;
		std::erase(out, '\r');
		CHECK(out == output({"run", "--help"}, std::to_string(columns)));
	}
}

TEST_CASE("help: kvrun help COMMAND is COMMAND --help, with examples and groups") {
	for (const std::string& c : kCommands) {
		CAPTURE(c);
		const std::string help = output({"help", c});
		CHECK(help == output({c, "--help"}));
		CHECK(help == output({c, "-h"}));
		CHECK(contains(help, fmt::format("\nUsage: kvrun {}", c)));
		CHECK(contains(help, "\nExamples:\n  "));
		CHECK(contains(output({"--help"}), fmt::format("\n  {} ", c)));
	}
	CHECK(output({"help"}) == output({"--help"}));
	const std::string run = output({"run", "--help"});
	for (const char* group : {"\nModel and device:\n", "\nKV cache:\n", "\nSampling:\n", "\nAccepted from llama.cpp"})
		CHECK_MESSAGE(contains(run, group), group);
	CHECK(!contains(output({"bench", "--help"}), "tok_s_median")); // only the man page has the JSON
	CHECK(contains(plain_dashes(output({"help", "--man", "bench"})), "tok_s_median"));
	const Ran unknown = run_program({"help", "pln"});
	CHECK(unknown.code == 2);
	CHECK(contains(unknown.err, "unknown command 'pln', did you mean 'plan'?"));
}

TEST_CASE("help: man pages and completions have every option of every command") {
	std::map<std::string, std::string> scripts;
	for (const char* shell : {"bash", "zsh", "fish"}) scripts[shell] = output({"completion", shell});
	for (const std::string& c : kCommands) {
		const std::set<std::string> options = options_in(output({c, "--help"}));
		const std::string man = plain_dashes(output({"help", "--man", c}));
		CHECK(options.size() >= 2);
		CHECK(man.starts_with(".TH KVRUN-"));
		for (const std::string& o : options) {
			CAPTURE(c);
			CAPTURE(o);
			CHECK(contains(man, fmt::format("\\fB{}\\fR", o)));
			CHECK(contains(scripts["bash"], o));
			CHECK(contains(scripts["zsh"], fmt::format("'{}[", o)));
			const bool is_long = o.starts_with("--");
			const std::string name = o.substr(is_long ? 2 : 1), kind = is_long ? "l" : name.size() > 1 ? "o" : "s";
			CHECK(contains(scripts["fish"], fmt::format(" -{} {} ", kind, name)));
		}
	}
	const std::string man = plain_dashes(output({"help", "--man"}));
	for (const char* part : {".TH KVRUN 1", ".SH EXIT CODES", ".SH ENVIRONMENT", "KVRUN_DEVICE", "kvrun-plan"})
		CHECK_MESSAGE(contains(man, part), part);
	const Ran r = run_program({"completion", "tcsh"});
	CHECK(r.code == 2);
	CHECK(contains(r.err, "expected bash or zsh or fish"));
}

TEST_CASE("help: a flag takes true and false, and no other word") {
	for (std::vector<std::string> args : all_commands()) {
		args.push_back("--help");
		const std::string help = output(args);
		for (const std::string& flag : flags_in(help)) {
			args.back() = flag + "=word";
			const Ran r = run_program(args);
			CAPTURE(args.front());
			CAPTURE(args.back());
			CHECK(r.code == 2);
			CHECK(contains(r.err, " is 'word', expected true or false\n"));
		}
	}
	for (const char* value : {"", "99999999999999999999", "2", "yes"})
		check_error({"run", fmt::format("--quiet={}", value)}, 2, {fmt::format("--quiet is '{}'", value)});
	check_error({"config", "show", "--json=x"}, 2, {"--json is 'x'"});
	check_error({"run", "--mlock=x"}, 2, {"--mlock is 'x'"});
	CHECK(run_program({"list", "--json=maybe"}).code == 2);
	for (const char* yes : {"true", "on", "1"})
		CHECK(run_program({"list", fmt::format("--json={}", yes)}).out.starts_with("["));
	for (const char* no : {"false", "off", "0"})
		CHECK(!run_program({"list", fmt::format("--json={}", no)}).out.starts_with("["));
	check_error({"compare", "merge"}, 2, {"kvrun compare merge needs FOLDER"});
}

TEST_CASE("help: advice on an option of llama.cpp names options that the command has") {
	const std::vector<std::string> of_llama = {"--rope-scaling",
	                                           "--override-kv",
	                                           "-ot",
	                                           "-fitt",
	                                           "--rpc",
	                                           "--check-tensors",
	                                           "--control-vector",
	                                           "-mu",
	                                           "-hft",
	                                           "-cl",
	                                           "--completion-bash",
	                                           "--usage",
	                                           "--log-file",
	                                           "--output-file",
	                                           "-bf",
	                                           "-lv",
	                                           "--verbose-prompt",
	                                           "--prompt-cache",
	                                           "-ins",
	                                           "--in-prefix",
	                                           "--reasoning-budget",
	                                           "--chat-template-kwargs",
	                                           "--context-shift",
	                                           "-gan",
	                                           "--cfg-scale",
	                                           "--video",
	                                           "--spec-type",
	                                           "--sleep-idle-seconds",
	                                           "--cors-origins",
	                                           "--metrics",
	                                           "--embeddings",
	                                           "--perplexity"};
	size_t advised = 0;
	for (const std::vector<std::string>& command : all_commands()) {
		std::vector<std::string> args = command;
		args.push_back("--help");
		const std::string help = output(args);
		const std::set<std::string> own = options_in(help.substr(0, help.find("\nAccepted from llama.cpp")));
		for (const std::string& option : of_llama) {
			args.back() = option;
			const Ran r = run_program(args);
			const std::string before = fmt::format("error: unknown option '{}': ", option);
			if (!r.err.starts_with(before)) continue;
			CAPTURE(r.err);
			++advised;
			std::istringstream words(r.err.substr(before.size(), r.err.rfind("; see kvrun ") - before.size()));
			for (std::string word; words >> word && word != "kvrun";) {
				word.erase(0, word.find_first_not_of('('));
				word.resize(std::min(word.find_first_of(",;:)"), word.size()));
				if (word.starts_with('-')) CHECK_MESSAGE(own.contains(word), word);
			}
		}
	}
	CHECK(advised > 200);
	check_error({"serve", "--reasoning-budget", "0"}, 2, {"--no-think turns reasoning off"});
	check_error({"bench", "--reasoning-budget", "0"}, 2, {"kvrun chat --no-think turns reasoning off"});
	check_error({"serve", "--sleep-idle-seconds", "60"}, 2, {"--idle-unload"});
	check_error({"run", "--cors-origins", "x"}, 2, {"it belongs to kvrun serve"});
}
