// Terminals and signals of POSIX systems.
#include "engine/core/system/terminal.h"
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <string_view>
#include <sys/ioctl.h>
#include <termios.h>
#include <thread>
#include <unistd.h>

namespace kvrun::sys {
namespace {

std::atomic<void (*)()> interrupt_handler;
std::atomic<bool (*)()> end_handler;
std::atomic<int> end_signal = SIGTERM;
static_assert(std::atomic<void (*)()>::is_always_lock_free); // so that a signal handler may use them
termios state_before;

void pass_interrupt(int) { interrupt_handler.load()(); } // not extern "C", whose names are global even here
void pass_end(int signal) {
	end_signal = signal;
	if (end_handler.load()()) raise(signal); // the default action is restored (SA_RESETHAND)
}

} // namespace

bool is_terminal(int stream) { return ::isatty(stream); }
size_t columns_of(int stream) {
	winsize size{};
	return ::ioctl(stream, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}
bool terminal_has_cursor() {
	const char* term = std::getenv("TERM");
	return term && *term && std::string_view(term) != "dumb";
}

void on_interrupt(void (*handler)()) {
	interrupt_handler = handler;
	struct sigaction act = {};
	act.sa_handler = pass_interrupt; // without SA_RESTART: a call that waits for a key returns
	sigaction(SIGINT, &act, nullptr);
}
void on_end(bool (*last)()) {
	end_handler = last;
	struct sigaction act = {};
	act.sa_handler = pass_end;
	act.sa_flags = int(SA_RESETHAND);
	for (const int s : {SIGTERM, SIGHUP}) sigaction(s, &act, nullptr);
}
void end_as_asked() {
	raise(end_signal); // the default action is restored
	std::_Exit(128 + end_signal);
}
bool keep_terminal_state() { return tcgetattr(STDIN_FILENO, &state_before) == 0; }
void restore_terminal_state() { tcsetattr(STDIN_FILENO, TCSANOW, &state_before); }

// The signal is passed to the thread through a pipe. It also restores the default action, so that the second signal
// ends the program whatever its threads are doing.
struct FirstSignal::Impl {
	static constexpr int kSignals[] = {SIGINT, SIGTERM};
	static inline volatile int write_end = -1;
	int ends[2];
	std::thread thread;

	static void restore() {
		struct sigaction usual {};
		usual.sa_handler = SIG_DFL;
		for (const int sig : kSignals) ::sigaction(sig, &usual, nullptr);
	}
	void wait(const std::function<void()>& told) const {
		char what = 0;
		ssize_t n;
		do n = ::read(ends[0], &what, 1);
		while (n < 0 && errno == EINTR);
		if (n == 1 && what == 's') told();
	}
};

FirstSignal::FirstSignal(std::function<void()> told) : impl_(std::make_unique<Impl>()) {
	if (::pipe2(impl_->ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made for signals");
	::fcntl(impl_->ends[1], F_SETFL, O_NONBLOCK);
	Impl::write_end = impl_->ends[1];
	impl_->thread = std::thread([this, told = std::move(told)] { impl_->wait(told); });
	struct sigaction ours {};
	ours.sa_flags = SA_RESTART; // a log line that is blocked on its reader is not lost
	ours.sa_handler = [](int) {
		Impl::restore();
		const int error = errno;
		(void)!::write(Impl::write_end, "s", 1);
		errno = error;
	};
	for (const int sig : Impl::kSignals) ::sigaction(sig, &ours, nullptr);
}
FirstSignal::~FirstSignal() {
	Impl::restore();
	(void)!::write(impl_->ends[1], "e", 1); // ends the thread
	impl_->thread.join();
	for (const int fd : impl_->ends) ::close(fd);
}

} // namespace kvrun::sys
