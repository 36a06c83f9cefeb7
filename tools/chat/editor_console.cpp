// Where there is no libedit, the system's console edits lines and recalls them; nothing is kept of them.
#include "tools/chat/input.h"
#include <cstdio>

namespace kvrun {
namespace {

class ConsoleInput : public LineInput {
 public:
	Got read(const char* prompt, std::string& line) override {
		std::fputs(prompt, stdout), std::fflush(stdout);
		const EditingInterrupt interrupt;
		const Got got = lines_->read(prompt, line);
		if (!EditingInterrupt::happened()) return got;
		std::fputs("\n", stdout), std::fflush(stdout);
		return Got::Interrupt;
	}

 private:
	std::unique_ptr<LineInput> lines_ = plain_input();
};

} // namespace

std::unique_ptr<LineInput> editor_input(const std::string&, Completer) { return std::make_unique<ConsoleInput>(); }

} // namespace kvrun
