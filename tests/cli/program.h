// Runs the kvrun program in the ways that a shell or a terminal does, for tests.
#pragma once
#include "tests/support/skip.h"
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvrun {

enum class Out {
	Pipe,   // collected in Ran::out
	Closed, // no file descriptor 1
	Full,   // /dev/full
	Gone,   // a pipe whose reader closes it after the first bytes
};
struct Terminal {
	unsigned short columns = 80;
	std::string term = "xterm";
};
struct RunSpec {
	std::vector<std::string> args;
	std::optional<std::string> input = ""; // bytes on stdin; nullopt: no file descriptor 0, or the terminal's keyboard
	Out out = Out::Pipe;
	std::optional<Terminal> terminal = {}; // stdout and stderr are one terminal; its bytes are in Ran::out
	std::vector<std::pair<std::string, std::string>> env = {};
	int timeout_s = 120;
	int signal = 0, signal_after_ms = 0; // 0: none; sent once, if the program still runs then
	// Called with the process id whenever new output arrives, with all output so far: to send signals, resize or type
	// (fd: terminal).
	std::function<void(int pid, int fd, const std::string& out)> watch = {};
};
struct Ran {
	int code = -1;       // exit code; 128 + signal if a signal ended it, as in a shell
	bool killed = false; // a signal ended it
	std::string out, err;
};

// The program is kvrun.exe under Wine (tools/dev/windows_tests.sh). What it lacks there counts as skipped: signals
// other than SIGINT and SIGKILL, limits of a process, libraries loaded before others, modes and kinds of files,
// terminals.
bool windows_program();
bool needs_posix(const std::string& what);

// This machine cannot create a terminal, for example a container without /dev/pts: the part counts as skipped.
bool no_terminal();
Ran run_program(const RunSpec&);
inline Ran run_program(std::vector<std::string> args) { return run_program(RunSpec{.args = std::move(args)}); }

} // namespace kvrun
