// Ctrl-C in a chat: ends an answer, discards a line, or ends the program. Its handlers are async-signal-safe.
#include "tools/chat/input.h"
#include "tools/commands.h"
#include <atomic>
#include <csignal>
#include <string_view>
#include <termios.h>
#include <unistd.h>

namespace kvrun {
namespace {

static_assert(std::atomic<kvrun_canceller*>::is_always_lock_free); // so that a signal handler may use them
std::atomic<kvrun_canceller*> answer = nullptr;                    // canceller of the answer under way
std::atomic<bool> cancelled = false;                               // that answer was cancelled
std::atomic<bool> editing = false, interrupted = false;
termios terminal_before;
bool terminal_known = false;

extern "C" void on_chat_interrupt(int) {
	if (editing) {
		interrupted = true;
		return;
	}
	if (kvrun_canceller* c = answer; c && !cancelled.exchange(true)) return kvrun_cancel(c);
	// moves the terminal to a new line; the result of write() does not matter
	const std::string_view end = terminal_known ? "\033[0m\n" : "\n"; // reasoning may have been dimmed
	[[maybe_unused]] const ssize_t n = write(STDERR_FILENO, end.data(), end.size());
	_exit(kInterrupted);
}

extern "C" void on_chat_end(int signal) {
	if (editing && terminal_known) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
	raise(signal); // the default action is restored (SA_RESETHAND)
}

} // namespace

void install_interrupt() {
	terminal_known = is_interactive() && tcgetattr(STDIN_FILENO, &terminal_before) == 0;
	struct sigaction act = {};
	act.sa_handler = on_chat_interrupt; // without SA_RESTART: a call that waits for a key returns
	sigaction(SIGINT, &act, nullptr);
	act.sa_handler = on_chat_end;
	act.sa_flags = int(SA_RESETHAND);
	for (const int s : {SIGTERM, SIGHUP}) sigaction(s, &act, nullptr);
}

AnswerInterrupt::AnswerInterrupt(kvrun_canceller* c) {
	kvrun_canceller_reset(c);
	cancelled = false;
	answer = c;
}
AnswerInterrupt::~AnswerInterrupt() { answer = nullptr; }

EditingInterrupt::EditingInterrupt() {
	interrupted = false;
	editing = true;
}
EditingInterrupt::~EditingInterrupt() { editing = false; }
bool EditingInterrupt::happened() { return interrupted; }

} // namespace kvrun
