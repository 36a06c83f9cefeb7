// Terminal handling: results to stdout as bytes, a progress bar on stderr, Ctrl-C.
#pragma once
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

namespace kvrun {

bool stdout_is_terminal();
bool stderr_is_terminal();

// Writes all bytes to stdout, or throws: Exit{5} without a message if the reader closed the pipe, otherwise Error{Io}.
void write_stdout(std::string_view bytes);
// Text for a terminal: control characters, which could move the cursor, write the clipboard or answer for the user,
// become \xNN, bytes that are not UTF-8 U+FFFD. Tabs stay, and line ends where `lines`; else they become \n.
std::string visible(std::string_view text, bool lines);
// Prints a line that begins with "# " to stderr.
void say_stats(std::string_view line);

// A terminal line that is overwritten; prints nothing if stderr is not a terminal, TERM is dumb, or it is too narrow.
class Progress {
 public:
	Progress();
	~Progress() { clear(); }
	Progress(const Progress&) = delete;
	// done: 0..1; redrawn at most ten times a second. seconds_left: 0 if unknown; shown once it is worth something.
	void show(std::string_view what, double done, double seconds_left = 0);
	void clear(); // erases the line

 private:
	bool on_ = false;
	size_t shown_ = 0;                                       // columns on the screen now
	std::chrono::steady_clock::time_point last_{}, begin_{}; // begin_: of the first call since a bar was erased
};

// While one lives, the first Ctrl-C sets requested() and the second ends the program with 130. Outside, the first does.
class Interrupt {
 public:
	Interrupt();
	~Interrupt();
	Interrupt(const Interrupt&) = delete;
	static const std::atomic<bool>& requested();
};

} // namespace kvrun
