// Terminal handling: results to stdout as bytes, a progress bar on stderr, Ctrl-C.
#include "tools/terminal.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/system/terminal.h"
#include "engine/core/utf8.h"
#include "tools/args_says.h"
#include "tools/commands.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace kvrun {
namespace {

constexpr size_t kNarrowest = 30; // below this many columns no bar is shown
// The time that is left is shown after kLongEnough seconds, or after fewer if a good share of the work is done.
constexpr double kLongEnough = 10, kLeastMeasured = 1, kLeastShare = 0.05;

// Columns of the terminal behind stderr; 0 if it does not say.
size_t columns() { return sys::columns_of(2); }

static_assert(std::atomic<bool>::is_always_lock_free); // so that a signal handler may use them
std::atomic<bool> tolerant = false;                    // an Interrupt object lives: the first Ctrl-C only sets a flag
std::atomic<bool> interrupted = false;

void on_interrupt() {
	if (tolerant && !interrupted.exchange(true)) return;
	// moves the terminal to a new line; the result of write() does not matter
	const char newline[] = {'\n'};
	(void)sys::write_file(2, std::as_bytes(std::span(newline)));
	std::_Exit(130);
}

std::string duration(double seconds) {
	const uint64_t s = uint64_t(std::min(seconds, 360000.));
	return s < 60 ? fmt::format("{} s", s) : fmt::format("{}:{:02} min", s / 60, s % 60);
}

void write_stderr(std::string_view s) { std::fwrite(s.data(), 1, s.size(), stderr); }

} // namespace

bool stdout_is_terminal() { return sys::is_terminal(1); }
bool stderr_is_terminal() { return sys::is_terminal(2); }

void write_stdout(std::string_view bytes) {
	if (sys::write_file(1, std::as_bytes(std::span(bytes)))) return;
	if (errno == EPIPE) throw Exit{5};
	fail(Code::Io, "standard output: {}", std::generic_category().message(errno));
}

std::string visible(std::string_view text, bool lines) {
	std::string out;
	for (size_t at = 0; at < text.size();) {
		const size_t n = utf8_char(text, at);
		if (n == 0)
			out += "\xef\xbf\xbd"; // U+FFFD
		else if (text[at] == '\t' || (text[at] == '\n' && lines))
			out += text[at];
		else
			out += one_line(text.substr(at, n));
		at += n ? n : 1;
	}
	return out;
}

static bool quiet = false; // changed by the main thread alone, while no other prints

void be_quiet() { quiet = true; }

Loud::Loud() : was_quiet_(std::exchange(quiet, false)) {}
Loud::~Loud() { quiet = was_quiet_; }

void say_stats(std::string_view line) {
	if (!quiet) write_stderr(fmt::format("# {}\n", line));
}

Progress::Progress() { on_ = !quiet && stderr_is_terminal() && sys::terminal_has_cursor(); }

void Progress::show(std::string_view what, double done, double seconds_left) {
	const auto now = std::chrono::steady_clock::now();
	if (begin_ == decltype(begin_){} || done <= 0) begin_ = now;
	if (!on_ || now - last_ < std::chrono::milliseconds(100)) return;
	const size_t width = columns();
	if (width < kNarrowest) return clear();
	last_ = now;
	// only ASCII and a carriage return, which respects NO_COLOR and works on simple terminals; one column stays free so
	// that no terminal wraps
	const std::chrono::duration<double> measured = now - begin_;
	// the first piece of work also prepares the device: its speed says nothing about the rest
	const bool known = measured.count() >= kLongEnough || (measured.count() >= kLeastMeasured && done >= kLeastShare);
	const std::string left = known && seconds_left >= 1 ? fmt::format("  {} left", duration(seconds_left)) : "";
	const size_t words = kNarrowest - 10 + (width >= kNarrowest + left.size() ? left.size() : 0);
	const size_t bar = std::min<size_t>(40, width - 1 - words);
	const size_t full = size_t(std::clamp(done, 0., 1.) * double(bar));
	std::string line = fmt::format("{:<10.10} [{:=<{}}{:<{}}] {:3.0f}%", what, "", full, "", bar - full,
	                               std::clamp(done, 0., 1.) * 100);
	if (words > kNarrowest - 10) line += left;
	const size_t length = line.size();
	if (shown_ > length) line.append(std::min(shown_, width - 1) - length, ' ');
	shown_ = length;
	write_stderr("\r" + line);
}

void Progress::clear() {
	begin_ = {};
	if (shown_ == 0) return;
	const size_t width = columns();
	write_stderr("\r" + std::string(width > 1 ? std::min(shown_, width - 1) : 0, ' ') + "\r");
	shown_ = 0;
}

Interrupt::Interrupt() {
	interrupted = false;
	tolerant = true;
	sys::on_interrupt(on_interrupt);
}

Interrupt::~Interrupt() { tolerant = false; }

const std::atomic<bool>& Interrupt::requested() { return interrupted; }

} // namespace kvrun
