// kvrun config: the effective settings from the settings file, the environment and kvrun's defaults.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/commands_setup.h"
#include "tools/config_file.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {
namespace {

struct ShowArgs {
	std::string command = "run", model;
	bool origin = false, json = false;
};

// "0.8" of "sampling temperature; 0 is greedy [0.8]"; empty if the help names no default.
std::string default_of(const Option& o) {
	const size_t open = o.help.rfind('['), close = o.help.rfind(']');
	if (o.type.empty()) return o.help.find(": the default") == std::string::npos ? "false" : "true";
	return open == std::string::npos || close != o.help.size() - 1 ? "" : o.help.substr(open + 1, close - open - 1);
}

void show(Command& root, const ShowArgs& a) {
	Command* command = nullptr;
	for (const auto& c : root.commands)
		if (c->name == a.command) command = c.get();
	if (!command || !command->run)
		fail(Code::Invalid, "COMMAND is '{}', expected one that has settings, as run, chat, serve or bench",
		     one_line(a.command));
	for (Option& o : command->options) // as if it had been typed
		if (!a.model.empty() && std::ranges::count(o.longs, "--model")) o.count = 1;
	Json out = Json::array();
	std::string text;
	for (const Origin& o : apply_config(root, *command, a.model)) {
		const std::string name = o.option->longs.front().substr(2);
		const std::string value = o.where.empty() ? default_of(*o.option) : o.value;
		const std::string where = o.where.empty() ? "default" : o.where;
		if (a.json)
			out.push_back({{"option", name}, {"value", value}, {"origin", where}});
		else if (a.origin)
			text += fmt::format("{:<18} {:<24} {}\n", name, one_line(value), one_line(where));
		else if (!o.where.empty())
			text += fmt::format("{} = {}\n", name, one_line(value));
	}
	if (a.json) return print_json(out);
	if (text.empty()) say_stats(fmt::format("nothing is set for {}; --origin shows the defaults", command->name));
	write_stdout(text);
}

} // namespace

void add_config(Command& root) {
	Command& c = add_command(root, "config", "Shows the settings: file, environment, defaults.");
	c.needs_command = true;
	c.sections = {
	    {"File",
	     "$XDG_CONFIG_HOME/kvrun/config.toml, or ~/.config/kvrun/config.toml. [defaults] holds for all commands that "
	     "have the option, [run], [chat], [serve] .. for one, [model.NAME] for models that NAME means; the later ones "
	     "count more. Keys are the long names of options without dashes: kv = \"kivi4\", temp = 0.2, ctx-size = "
	     "\"32k\", no-history = true. A value on the command line counts most, then the environment (KVRUN_DEVICE), "
	     "then the file."}};
	const auto a = std::make_shared<ShowArgs>();
	Command& s =
	    add_command(c, "show", "Prints what is set for a command, or with --origin everything and from where.");
	s.examples = {{"kvrun config show", "what the file and the environment set for kvrun run"},
	              {"kvrun config show chat -m smollm2 --origin", "all options of kvrun chat with this model"}};
	add_text(s, "command", a->command, "COMMAND", "whose options [run]");
	add_text(s, "-m,--model", a->model, "MODEL", "with the sections of this model")->of_models();
	add_flag(s, "--origin", a->origin, "all options, and where each value comes from");
	add_flag(s, "--json", a->json, "print a JSON array");
	s.sections = {json_section(
	    {{"option, value, origin", "long name; as typed; command line, a variable, file:line or default"}})};
	s.run = [a, &root] { show(root, *a); };
	Command& p = add_command(c, "path", "Prints where the file is, or would be.");
	p.run = [] {
		if (config_path().empty()) fail(Code::NotFound, "neither XDG_CONFIG_HOME nor HOME is set; set one of them");
		write_stdout(config_path() + "\n");
	};
}

} // namespace kvrun
