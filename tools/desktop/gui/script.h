// A script that drives the window like a user: keys and text go through Qt's event handling.
#pragma once
#include "tools/desktop/gui/app.h"
#include <QObject>
#include <deque>

namespace kvrun::desktop {

class Window;

// One command per line; empty lines and lines that begin with # are ignored. tools/desktop/README.md lists the
// commands.
class Script : public QObject {
 public:
	Script(const std::string& file, App&, Window&); // throws StatusError that names file and line
	std::exception_ptr failure() const { return failure_; }

 private:
	struct Command {
		int line;
		std::string name, rest;
	};
	void guard(const std::function<void()>&); // ends the program if `f` fails
	void step();                              // runs the commands that can run now
	bool run(const Command&, double now);     // false: it must wait
	bool wait(const Command&, double now);
	void press_key(const Command&);
	void press_button(const Command&);
	void type(const QString&);
	void drop(const QString& path);
	void dump(const std::string& file) const;
	void screenshot(const std::string& file) const;
	[[noreturn]] void bad(const Command&, const std::string& why) const;
	std::string file_;
	App& app_;
	Window& window_;
	QTimer timer_;
	std::deque<Command> commands_;
	std::exception_ptr failure_;
	double since_ = -1; // clock at which the first command began to wait
	int pause_ = 0;     // steps until the next command
	bool in_step_ = false;
};

} // namespace kvrun::desktop
