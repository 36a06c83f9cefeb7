// The commands of the program: each add_X() adds one subcommand to the app. Also how a command ends the program.
#pragma once
#include "tools/args.h"

namespace kvrun {

struct Exit { // thrown by a command to end the program after it has printed its messages
	int code; // exit code
};
// Runs another command of this program in this process; prints errors and returns the exit code. settings: options that
// are not among the words may come from the settings file.
int run_words(const std::vector<std::string>& words, bool settings = true);
constexpr int kInterrupted = 130; // exit code after Ctrl-C; a command prints what it has done so far

// In the order of --help; every one is called from kvrun.cpp.
void add_run(Command&);
void add_chat(Command&);
void add_serve(Command&);
void add_bench(Command&);
void add_devices(Command&);
void add_pull(Command&);
void add_list(Command&);
void add_rm(Command&);
void add_plan(Command&);
void add_inspect(Command&);
void add_embed(Command&);
void add_tokenize(Command&);
void add_replay(Command&);
void add_eval(Command&);
void add_tune(Command&);
void add_compare(Command&);
void add_synth(Command&);
void add_completion(Command&);
void add_help(Command&); // must be last: it lists the others

} // namespace kvrun
