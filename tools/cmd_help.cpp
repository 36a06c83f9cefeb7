// kvrun help and kvrun completion: documentation of the program as text, man pages and shell scripts.
#include "engine/core/error.h"
#include "tools/commands.h"
#include "tools/help.h"
#include "tools/terminal.h"

namespace kvrun {

void add_help(Command& root) {
	struct Args {
		std::string command;
		bool man = false;
	};
	auto a = std::make_shared<Args>();
	Command& c = add_command(root, "help", "Prints the help of a command, as --help does.");
	c.examples = {{"kvrun help plan", "the options of kvrun plan"},
	              {"kvrun help --man plan | man -l -", "its man page, where none is installed"}};
	Option* name = add_text(c, "command", a->command, "COMMAND", "a command of kvrun; none: the list of all");
	for (const auto& sub : root.commands) name->choices.push_back(sub->name);
	add_flag(c, "--man", a->man, "write the man page, in roff");
	c.run = [a, &root] {
		const Command* of = a->command.empty() ? &root : root.find_command(a->command);
		if (!of) fail(Code::Invalid, "{}", unknown_word(root, a->command));
		write_stdout(a->man ? man_page(*of) : help_text(*of, help_columns()));
	};
}

void add_completion(Command& root) {
	auto shell = std::make_shared<std::string>();
	Command& c = add_command(root, "completion", "Prints a completion script for bash, zsh or fish.");
	c.examples = {{"source <(kvrun completion bash)", "complete commands, options and names of models in this shell"}};
	add_choice(c, "shell", *shell, {"bash", "zsh", "fish"}, "write the script for this shell")->required();
	c.run = [shell, &root] { write_stdout(completion_script(root, *shell)); };
}

} // namespace kvrun
