// A script that drives the app as a user would: keys and text go through the window's event queue.
#pragma once
#include "tools/desktop/gui/frame_times.h"
#include "tools/desktop/gui/ui.h"
#include "tools/desktop/gui/vulkan_frames.h"
#include <deque>
#include <utility>

namespace kvrun::desktop {

// One command per line; empty lines and lines that begin with # are left out:
//   wait loaded|idle|answering|reading|planned [SECONDS]   fails after so many seconds [300]
//   wait SECONDS
//   type TEXT
//   paste FILE        its text, through the clipboard
//   key [ctrl+][shift+][alt+]NAME   NAME: of SDL, as Return, Escape, F2, N
//   screenshot FILE   .png, or .ppm
//   dump FILE         the app's state and the places of the window's parts, JSON
//   frames clear|show times of frames since the last clear, on stdout
//   quit
class Script {
 public:
	explicit Script(const std::string& file); // throws ChatError that names file and line
	// Does what can be done before the next frame. Throws ChatError where a command fails.
	void step(const Ui&, FrameTimes&, double now);
	bool done() const { return commands_.empty() || quit_; }
	bool quits() const { return quit_; }
	std::string take_screenshot() { return std::exchange(screenshot_, {}); } // file to write after the next frame

 private:
	struct Command {
		int line;
		std::string name, rest;
	};
	bool run(const Command&, const Ui&, FrameTimes&, double now); // false: not yet
	bool wait(const Command&, const Ui&, double now);
	void press(const Command&);
	[[noreturn]] void bad(const Command&, const std::string& why) const;
	std::string file_;
	std::deque<Command> commands_;
	double since_ = -1; // clock at which the first command began to wait
	std::string screenshot_;
	int held_key_ = 0, held_mod_ = 0; // released in the next step
	int pause_ = 0;                   // frames until the next command
	bool quit_ = false;
};

// Throws ChatError{KVRUN_EIO}.
void write_picture(const Picture&, const std::string& file);

} // namespace kvrun::desktop
