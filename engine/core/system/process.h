// Processes as the system has them: this one's number, arguments and environment, and helpers with a time limit.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace kvrun::sys {

int process_id();
bool has_ended(int process); // and no other process has its number
std::string program_path();  // of this process; empty if unknown

// At the beginning of main(): closed standard streams are opened, so that the next file does not get their number;
// bytes pass through them as they are, terminals take UTF-8, and writing to a closed pipe or a too long file is an
// error.
void prepare_program();
std::vector<std::string> arguments(int argc, char** argv); // in UTF-8

std::vector<std::string> environment(); // NAME=value
void set_variable(const std::string& name, const std::string& value);
extern const char kListSeparator; // between the files of a variable: ':'

// A program that runs beside this one without input. It ends, with what it started, when the object goes.
class HelperProcess {
 public:
	HelperProcess();
	~HelperProcess();
	HelperProcess(const HelperProcess&) = delete;

	// Returns why it could not be started; a system without pipes for it starts nothing and returns nothing.
	std::string start(const std::string& program, const std::vector<std::string>& environment);
	bool running() const; // started and not stopped, whether it has ended or not
	int id() const;
	// Adds what it wrote to stdout and stderr, of which the end is kept; true if it has ended. Never waits: neither
	// pipe is read to its end, for a process that was left behind may hold it.
	bool look(std::string& out, std::string& err);
	struct End {
		bool known = false; // false: somebody else waited for it
		std::string crash;  // "signal 6 (SIGABRT)"; empty: it ended itself
		int code = 0;
	};
	End end() const; // after look() was true
	void stop();

 private:
	struct Impl;
	std::unique_ptr<Impl> impl_;
};

// In a helper: it ends with the process that started it, or after these seconds, and leaves no core file. Its standard
// output is stderr's from now on; returns a descriptor of what it was, or -1.
int become_helper(unsigned longest_seconds);

} // namespace kvrun::sys
