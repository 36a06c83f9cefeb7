// The commands of the program: each add_X() gives the app one subcommand; and how a command ends.
#pragma once
#include <CLI/CLI.hpp>

namespace kvrun {

struct Exit { // thrown by a command to end the program: everything there was to say has been said
	int code; // exit code
};
constexpr int kInterrupted = 130; // exit code after Ctrl-C; a command prints what it has done so far

// In the order of --help; every one is called from kvrun.cpp.
void add_run(CLI::App&);
void add_bench(CLI::App&);
void add_devices(CLI::App&);
void add_plan(CLI::App&);
void add_inspect(CLI::App&);
void add_tokenize(CLI::App&);
void add_replay(CLI::App&);
void add_eval(CLI::App&);

} // namespace kvrun
