// Terminals and what ends programs on them: POSIX terminals and signals, Windows' console and its events.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace kvrun::sys {

bool is_terminal(int stream);  // 0, 1, 2
size_t columns_of(int stream); // 0: unknown
bool terminal_has_cursor();    // the terminal moves its cursor as told, if there is one: TERM is set and not dumb

// Calls the handler at each Ctrl-C; a call that waits for a key returns then. On POSIX the handler runs as a signal
// handler, on Windows on a thread of its own: it may use atomics, write bytes to descriptors, and end the program.
void on_interrupt(void (*handler)());
// Calls `last` when the program is told to end (SIGTERM, SIGHUP, a console that closes), once; then it ends.
void on_end(void (*last)());
// The state of the terminal behind standard input; restored from a signal handler too.
bool keep_terminal_state();
void restore_terminal_state();

// While one lives, the first Ctrl-C or SIGTERM calls `told` on a thread of its own; from then on they end the program.
class FirstSignal {
 public:
	explicit FirstSignal(std::function<void()> told);
	~FirstSignal();
	FirstSignal(const FirstSignal&) = delete;

 private:
	struct Impl;
	std::unique_ptr<Impl> impl_;
};

} // namespace kvrun::sys
