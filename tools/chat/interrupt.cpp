// Ctrl-C in a chat: ends an answer, discards a line, or ends the program. Its handlers are async-signal-safe.
#include "engine/core/system/files.h"
#include "engine/core/system/terminal.h"
#include "tools/chat/input.h"
#include "tools/commands.h"
#include <atomic>
#include <cstdlib>
#include <string_view>

namespace kvrun {
namespace {

static_assert(std::atomic<kvrun_canceller*>::is_always_lock_free); // so that a signal handler may use them
std::atomic<kvrun_canceller*> answer = nullptr;                    // canceller of the answer under way
std::atomic<bool> cancelled = false;                               // that answer was cancelled
std::atomic<bool> editing = false, interrupted = false, ending = false;
bool terminal_known = false;

void on_chat_interrupt() {
	if (editing) {
		interrupted = true;
		return;
	}
	if (kvrun_canceller* c = answer; c && !cancelled.exchange(true)) return kvrun_cancel(c);
	// moves the terminal to a new line; the result of write() does not matter
	const std::string_view end = terminal_known ? "\033[0m\n" : "\n"; // reasoning may have been dimmed
	(void)sys::write_file(2, std::as_bytes(std::span(end)));
	std::_Exit(kInterrupted);
}

// An answer is cancelled, so that the chat can be written to its files before the program ends.
bool on_chat_end() {
	if (editing && terminal_known) {
		constexpr std::string_view plain_paste = "\033[?2004l"; // the shell would get pastes with marks around them
		(void)sys::write_file(1, std::as_bytes(std::span(plain_paste)));
		sys::restore_terminal_state();
	}
	kvrun_canceller* c = answer;
	if (!c) return true;
	ending = true;
	kvrun_cancel(c);
	return false;
}

} // namespace

void install_interrupt() {
	terminal_known = edits_lines() && sys::keep_terminal_state();
	sys::on_interrupt(on_chat_interrupt);
	sys::on_end(on_chat_end);
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

bool asked_to_end() { return ending; }

} // namespace kvrun
