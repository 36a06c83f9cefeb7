// The program: finds the command, runs it, and turns every way to fail into one line on stderr and an exit code.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/crash.h"
#include "tools/env.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 internal, 2 usage, 3 file, 4 device, 5 input/output, 6 context,\n"
    "            130 interrupted.";

int exit_code(Code c) {
	switch (c) {
	case Code::Internal: return 1;
	case Code::Invalid: return 2;
	case Code::NotFound:
	case Code::Unsupported:
	case Code::Format: return 3;
	case Code::OutOfMemory:
	case Code::Device: return 4;
	case Code::Io: return 5;
	case Code::Context: return 6;
	}
	return 1;
}

int say(int code, std::string_view message) {
	const std::string line = fmt::format("error: {}\n", one_line(message, /*max_bytes=*/4000));
	std::fwrite(line.data(), 1, line.size(), stderr);
	return code;
}

// A standard stream that is closed would hand its number to the next file opened: the model, or a device.
void hold_standard_streams() {
	for (int fd = 0; fd <= 2; ++fd) {
		if (fcntl(fd, F_GETFD) != -1) continue;
		// the wrong direction on purpose: using a closed stream stays an error; stderr is lost quietly
		const int got = open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY);
		if (got >= 0 && got != fd) close(got);
	}
}

// What ExtrasError means to the user: the first word nobody took, and what it may have been meant to be.
std::string unknown_word(const CLI::App& app) {
	const CLI::App* where = &app;
	for (const CLI::App* sub : app.get_subcommands()) where = sub;
	const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
	std::string word = extras.empty() ? "" : extras.front();
	word = word.substr(0, word.find('='));
	std::vector<std::string> known;
	const bool flag = word.size() > 1 && word[0] == '-';
	if (flag) {
		for (const CLI::Option* o : where->get_options()) {
			for (const std::string& n : o->get_lnames()) known.push_back("--" + n);
			for (const std::string& n : o->get_snames()) known.push_back("-" + n);
		}
	} else if (where == &app) {
		for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
			known.push_back(sub->get_name());
	}
	const std::string near = nearest(word, known);
	const std::string command = where == &app ? "kvrun" : "kvrun " + where->get_name();
	return fmt::format("unknown {} '{}'{}; see {} --help",
	                   flag            ? "option"
	                   : where == &app ? "command"
	                                   : "argument",
	                   word, near.empty() ? "" : ", did you mean '" + near + "'?", command);
}

// llama.cpp's flags of one dash and several letters, which CLI11 would read as several flags.
std::vector<std::string> spelled_out(int argc, char** argv) {
	static const std::map<std::string, std::string> kWords = {
	    {"-ub", "--ubatch-size"}, {"-dev", "--device"}, {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}};
	// what follows these is text, whatever it looks like
	static const std::set<std::string> kText = {"-p",      "--prompt", "-f",       "--file", "-m",
	                                            "--model", "--stop",   "--device", "--kv",   "-dev"};
	std::vector<std::string> out(argv + 1, argv + argc);
	for (size_t i = 0; i < out.size(); ++i) {
		const auto word = kWords.find(out[i]);
		if (word != kWords.end() && (i == 0 || !kText.count(argv[i])))
			out[i] = word->second; // argv[i]: the word before
	}
	return out;
}

int run(int argc, char** argv) {
	log_to_stderr();
	CLI::App app("Runs large language models on Vulkan devices.", "kvrun");
	app.set_version_flag("--version", std::string("kvrun ") + KVRUN_VERSION);
	app.require_subcommand(1);
	app.footer(kExitCodes);
	add_run(app);
	add_bench(app);
	add_devices(app);
	add_plan(app);
	add_inspect(app);
	add_tokenize(app);
	add_replay(app);
	add_eval(app);
	app.get_formatter()->column_width(34);
	try {
		std::vector<std::string> words = spelled_out(argc, argv);
		std::reverse(words.begin(), words.end()); // CLI11 takes them from the back
		app.parse(std::move(words));
	} catch (const CLI::ParseError& e) {
		const bool no_such_command = app.get_subcommands().empty() && !app.remaining(/*recurse=*/true).empty();
		if (e.get_exit_code() == 0 && !no_such_command) { // --help and --version
			std::ostringstream text;
			app.exit(e, text, text);
			std::fputs(text.str().c_str(), stdout);
			return 0;
		}
		// a mistyped --model is also a missing one: the word nobody knows says more
		if (!app.remaining(/*recurse=*/true).empty()) return say(2, unknown_word(app));
		if (app.get_subcommands().empty()) return say(2, "no command given; see kvrun --help");
		return say(2, e.what());
	}
	return 0;
}

// Results that did not reach their reader are an error: 5, without a word when the reader went away.
int close_stdout(int code) {
	errno = 0;
	if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
	if (errno != EPIPE)
		say(5, fmt::format("standard output: {}", std::generic_category().message(errno ? errno : EIO)));
	return code == 0 ? 5 : code;
}

int guarded(int argc, char** argv) {
	try {
		return run(argc, argv);
	} catch (const Exit& e) { return e.code; } catch (const Error& e) {
		return say(exit_code(e.code), e.what());
	} catch (const std::system_error& e) { // fmt::print on a stream that takes no more
		return e.code().value() == EPIPE ? 5 : say(5, e.what());
	} catch (const std::bad_alloc&) {
		say_out_of_memory();
		return 4;
	} catch (const std::exception& e) { return say(1, e.what()); }
}

} // namespace
} // namespace kvrun

int main(int argc, char** argv) {
	kvrun::hold_standard_streams();
	kvrun::install_last_words();
	std::signal(SIGPIPE, SIG_IGN);
	std::signal(SIGXFSZ, SIG_IGN); // a file that may not grow is a write that fails
	return kvrun::close_stdout(kvrun::guarded(argc, argv));
}
