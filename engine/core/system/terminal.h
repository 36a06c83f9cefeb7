// Terminals, Ctrl-C and requests to end: POSIX terminals and signals, Windows consoles and their events.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace kvrun::sys {

bool is_terminal(int stream);  // 0, 1, 2
size_t columns_of(int stream); // 0: unknown
bool terminal_has_cursor();    // a terminal would obey cursor movements: TERM is set and not dumb

// Calls the handler at each Ctrl-C; a call that waits for a key then returns. The handler runs as a signal handler, on
// Windows on a separate thread: it may use atomics, write to descriptors, and end the program.
void on_interrupt(void (*handler)());
// Calls `last` once when the program is asked to end (SIGTERM, SIGHUP, a closed console), as a handler of Ctrl-C. Then
// the program ends; if `last` returns false, it goes on until it calls end_as_asked(), at most until it is asked again.
void on_end(bool (*last)());
[[noreturn]] void end_as_asked();
// The state of the terminal behind standard input; restored from a signal handler too.
bool keep_terminal_state();
void restore_terminal_state();

// While an object exists, the first Ctrl-C or SIGTERM calls `told` on a separate thread; the next one ends the program.
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
