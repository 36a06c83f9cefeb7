// This process (ID, arguments, environment), and helper programs with a time limit.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace kvrun::sys {

int process_id();
bool has_ended(int process); // no process has this ID
std::string program_path();  // of this process; empty if unknown

// Called at the beginning of main(). Opens closed standard streams, so that no other file gets their descriptors; makes
// them binary, and terminals UTF-8; writing to a closed pipe, or past the file size limit, becomes an error.
void prepare_program();
std::vector<std::string> arguments(int argc, char** argv); // in UTF-8

std::vector<std::string> environment(); // NAME=value
void set_variable(const std::string& name, const std::string& value);
extern const char kListSeparator; // between the paths of a variable: ':', on Windows ';'

// Runs a command of the system's shell without its stderr, and appends what it prints. Returns its exit code, or -1.
int run_shell(const std::string& command, std::string& out);
std::string shell_word(const std::string&); // quoted for that shell

// A helper program without input. The destructor ends it and the processes that it started.
class HelperProcess {
 public:
	HelperProcess();
	~HelperProcess();
	HelperProcess(const HelperProcess&) = delete;

	// Returns why the program could not be started. Without descriptors for its pipes: empty, and it does not run.
	std::string start(const std::string& program, const std::vector<std::string>& environment);
	bool running() const; // started and not stopped, whether it has ended or not
	int id() const;
	// Appends its new output to `out` and `err`, which keep only the end; true if it has ended. Never waits, not even
	// for the end of a pipe, because a process that it left running may hold the pipe open.
	bool look(std::string& out, std::string& err);
	struct End {
		bool known = false; // false: another part of the program waited for it
		std::string crash;  // "signal 6 (SIGABRT)"; empty: it ended itself
		int code = 0;
	};
	End end() const; // after look() was true
	void stop();

 private:
	struct Impl;
	std::unique_ptr<Impl> impl_;
};

// Called by a helper program: it ends with the process that started it, or after this time, without a core file. Its
// standard output becomes stderr; returns a descriptor of the former standard output, or -1.
int become_helper(unsigned longest_seconds);

} // namespace kvrun::sys
