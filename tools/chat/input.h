// What the user types: messages of one or several lines, and Ctrl-C.
#pragma once
#include "engine/kvrun.h"
#include "tools/chat/completion.h"
#include <memory>
#include <string>

namespace kvrun {

class LineInput {
 public:
	enum class Got { Line, End, Interrupt }; // Interrupt: Ctrl-C was pressed while it waited
	virtual ~LineInput() = default;
	// line: without its newline; a paste or Alt-Enter may put several lines into one.
	virtual Got read(const char* prompt, std::string& line) = 0;
	// Adds an entry to the history that the arrow keys recall.
	virtual void remember(const std::string&) {}
};
// Reads lines of standard input; on a terminal behind a prompt, on stderr where stdout is none.
std::unique_ptr<LineInput> plain_input();
// A line editor on the terminal. history: file with mode 0600 that stores typed lines; empty for none. complete: for
// the Tab key.
std::unique_ptr<LineInput> editor_input(const std::string& history, Completer complete);

// Reads the next message or command; a line that begins with """ continues to a line that ends with """.
LineInput::Got read_entry(LineInput&, std::string& entry);

bool is_interactive(); // standard input and output are terminals
bool edits_lines();    // which can move a cursor: editor_input() is for them

// Sets handlers. Ctrl-C ends the answer under way, see AnswerInterrupt; while a line is edited, gives Got::Interrupt;
// at any other time, or twice during an answer, ends the program with 130. SIGTERM and SIGHUP leave the terminal as it
// was; during an answer they cancel it, and asked_to_end() becomes true.
void install_interrupt();
bool asked_to_end(); // the program must write its files and call sys::end_as_asked()
// While one lives, the first Ctrl-C cancels calls that use the canceller, and the second ends the program.
class AnswerInterrupt {
 public:
	explicit AnswerInterrupt(kvrun_canceller*);
	~AnswerInterrupt();
	AnswerInterrupt(const AnswerInterrupt&) = delete;
};
// While one lives, Ctrl-C only makes the call that waits for a key return.
class EditingInterrupt {
 public:
	EditingInterrupt();
	~EditingInterrupt();
	EditingInterrupt(const EditingInterrupt&) = delete;
	static bool happened(); // whether Ctrl-C came since the last one was created
};

} // namespace kvrun
