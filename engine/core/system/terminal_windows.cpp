// The console of Windows and its events.
#include "engine/core/system/terminal.h"
#include "engine/core/system/wide.h"
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

namespace kvrun::sys {
namespace {

std::atomic<void (*)()> interrupt_handler;
std::atomic<bool (*)()> end_handler;
std::mutex first_mutex;
std::function<void()> first; // of a FirstSignal, until it has been called
DWORD state_before;

BOOL WINAPI on_event(DWORD event) {
	std::function<void()> told;
	{
		std::lock_guard lock(first_mutex);
		told.swap(first);
	}
	if (told) return told(), TRUE;
	if (event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT) {
		const auto handler = interrupt_handler.load();
		return handler ? (handler(), TRUE) : FALSE;
	}
	constexpr DWORD kPatience = 5000; // ms, as long as Windows waits
	if (const auto last = end_handler.load(); last && !last()) Sleep(kPatience);
	return FALSE; // Windows ends the program
}
void listen() {
	static const bool listening = SetConsoleCtrlHandler(on_event, TRUE);
	(void)listening;
}

} // namespace

bool is_terminal(int stream) {
	DWORD mode;
	return GetConsoleMode(handle_of(stream), &mode); // unlike _isatty(), false for NUL
}
size_t columns_of(int stream) {
	CONSOLE_SCREEN_BUFFER_INFO info;
	return GetConsoleScreenBufferInfo(handle_of(stream), &info) ? size_t(info.srWindow.Right - info.srWindow.Left + 1)
	                                                            : 0;
}
bool terminal_has_cursor() { return true; }

void on_interrupt(void (*handler)()) { interrupt_handler = handler, listen(); }
void on_end(bool (*last)()) { end_handler = last, listen(); }
void end_as_asked() { std::_Exit(143); } // as after SIGTERM elsewhere
bool keep_terminal_state() { return GetConsoleMode(handle_of(0), &state_before); }
void restore_terminal_state() { SetConsoleMode(handle_of(0), state_before); }

struct FirstSignal::Impl {};
FirstSignal::FirstSignal(std::function<void()> told) {
	std::lock_guard lock(first_mutex);
	first = std::move(told);
	listen();
}
FirstSignal::~FirstSignal() {
	std::lock_guard lock(first_mutex);
	first = nullptr;
}

} // namespace kvrun::sys
