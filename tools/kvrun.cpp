// The program: finds the command, runs it, and maps every failure to one line on stderr and an exit code.
#include "engine/core/error.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/api_call.h"
#include "tools/commands_setup.h"
#include "tools/config_file.h"
#include "tools/crash.h"
#include "tools/env.h"
#include "tools/help.h"
#include "tools/terminal.h"
#include <algorithm>
#include <cstdio>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string>
#include <system_error>

namespace kvrun {
namespace {

void describe(Command& app) {
	app.examples = {
	    {"kvrun run model.gguf -p \"Once upon a time\" -n 64", "continue a text"},
	    {"kvrun chat model.gguf", "talk with a model"},
	    {"kvrun plan model.gguf --kv all -c 32k", "which cache policies hold 32768 tokens on this machine"},
	    {"kvrun run model.gguf -f report.txt --kv kivi2", "read a long text with a cache of 2 bits per value"},
	    {"kvrun bench model.gguf --kv fp16,kivi2 -d 0,8k", "what a policy costs in speed"}};
	app.sections.push_back({"Exit codes",
	                        "",
	                        {{"0", "ok"},
	                         {"1", "a fault in kvrun"},
	                         {"2", "usage: an option or a value is wrong"},
	                         {"3", "a file is missing, damaged or not supported"},
	                         {"4", "no such device, a device failed, or memory ran out"},
	                         {"5", "input or output failed"},
	                         {"6", "does not fit: a prompt in its context, or a plan in its memory"},
	                         {"7, 8", "compare: wrong results; slower than the baseline"},
	                         {"130", "interrupted by Ctrl-C; what was done until then has been printed"}}});
	Section environment{"Environment", "", {}, /*man_only=*/true};
	for (const EnvInfo& e : env_table())
		environment.entries.push_back(
		    {e.name, fmt::format("{}{}", e.help, *e.fallback ? fmt::format(" [{}]", e.fallback) : "")});
	app.sections.push_back(environment);
}

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

// doctor and config report bad settings themselves; help and completion use none.
bool is_setup(const Command& c) {
	for (const char* name : {"doctor", "config", "help", "completion", "list", "rm", "pull"})
		if (c.name == name) return true;
	return false;
}

// The model named on the command line, or empty. It selects the sections of the settings file.
std::string typed_model(const Command& c, int argc, char** argv) {
	const auto named = [&](const std::string& word) -> const Option* {
		for (const Option& o : c.options)
			if (std::ranges::count(o.names(), word)) return &o;
		return nullptr;
	};
	const Option *model = c.find_option("--model"), *hub = c.find_option("--hf-repo");
	if (!model) return {};
	for (int i = 2; i < argc; ++i) {
		const std::string word = argv[i], name = word.substr(0, word.find('='));
		if (word.empty() || word[0] != '-') {
			if (!model->positional.empty()) return word;
			continue;
		}
		const Option* o = named(name);
		if (!o) continue;
		const bool joined = name.size() < word.size(), flag = o->type.empty();
		if (flag && o->choices.empty()) continue;
		if (o == model || o == hub) return joined ? word.substr(name.size() + 1) : i + 1 < argc ? argv[i + 1] : "";
		const bool optional = flag || !o->implied.empty();
		if (!joined && (!optional || (i + 1 < argc && std::ranges::count(o->choices, argv[i + 1])))) ++i;
	}
	return {};
}

int run(int argc, char** argv, bool settings) {
	log_to_stderr();
	Command app("kvrun", "Runs large language models from GGUF files, with a packed KV cache.");
	app.add_version(std::string("kvrun ") + KVRUN_VERSION);
	app.needs_command = true;
	describe(app);
	add_run(app);
	add_chat(app);
	add_serve(app);
	add_bench(app);
	add_devices(app);
	add_pull(app);
	add_list(app);
	add_rm(app);
	add_plan(app);
	add_inspect(app);
	add_embed(app);
	add_tokenize(app);
	add_replay(app);
	add_eval(app);
	add_tune(app);
	add_compare(app);
	add_synth(app);
	add_doctor(app);
	add_config(app);
	add_completion(app);
	add_help(app);
	const Parsed asked = parse(app, argc, argv);
	if (asked.help)
		write_stdout(help_text(*asked.command, help_columns()));
	else if (asked.version)
		write_stdout(app.version + "\n");
	else {
		if (settings && asked.command->parent == &app && !is_setup(*asked.command))
			apply_config(app, const_cast<Command&>(*asked.command), typed_model(*asked.command, argc, argv));
		for (const auto& prepare : asked.command->before_run) prepare();
		asked.command->run();
	}
	return 0;
}

// Output that could not be written is an error with exit code 5; silent if the reader closed the pipe.
int close_stdout(int code) {
	errno = 0;
	if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
	if (errno != EPIPE)
		say(5, fmt::format("standard output: {}", std::generic_category().message(errno ? errno : EIO)));
	return code == 0 ? 5 : code;
}

int guarded(int argc, char** argv, bool settings) {
	try {
		return run(argc, argv, settings);
	} catch (const Exit& e) { return e.code; } catch (const Error& e) {
		return say(exit_code(e.code), with_place(e.what()));
	} catch (const StatusError& e) {
		return say(exit_code_of(e.status), with_place(e.what()));
	} catch (const std::system_error& e) { // from fmt::print, when writing fails
		return e.code().value() == EPIPE ? 5 : say(5, e.what());
	} catch (const std::bad_alloc&) {
		say_out_of_memory();
		return 4;
	} catch (const std::exception& e) { return say(1, e.what()); }
}

} // namespace

static int run_whole(std::vector<std::string>& words, bool settings = true) { // the program's name included
	std::vector<char*> argv;
	for (std::string& w : words) argv.push_back(w.data());
	argv.push_back(nullptr);
	return guarded(int(words.size()), argv.data(), settings);
}

int run_words(const std::vector<std::string>& words, bool settings) {
	std::vector<std::string> all = words;
	all.insert(all.begin(), "kvrun");
	return run_whole(all, settings);
}

// Returns large blocks to the system when they are freed. glibc would raise this limit with the first such block, and
// memory of CPU devices would stay in its heap.
void give_large_blocks_back() {
#ifdef __GLIBC__
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

} // namespace kvrun

int main(int argc, char** argv) {
	kvrun::sys::prepare_program();
	kvrun::install_last_words();
	kvrun::give_large_blocks_back();
	std::vector<std::string> words = kvrun::sys::arguments(argc, argv);
	return kvrun::close_stdout(kvrun::run_whole(words));
}
