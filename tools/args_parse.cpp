// Parses a command line with CLI11: converts the tree of commands to a tree of apps and reads back the values.
#include "engine/core/error.h"
#include "tools/args.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <stdexcept>

namespace kvrun {
namespace {

using Options = std::map<const Option*, CLI::Option*>;

void add_option(CLI::App& app, Option& o, Options& added) {
	std::string flags = o.positional;
	for (const auto* list : {&o.shorts, &o.longs}) // CLI11 would read -ngl as several flags; plain_words() replaces it
		for (const std::string& n : *list) flags += (flags.empty() ? "" : ",") + n;
	const auto take = [&o](CLI::results_t given) {
		if (given == CLI::results_t{"{}", "%%"}) given.pop_back(); // CLI11 2.3 and newer mark {} so, an empty list
		o.count = given.size();
		o.take(given);
		return true;
	};
	CLI::Option* made = nullptr;
	if (o.type.empty()) {
		made = app.add_flag_function(
		    flags, [take](int64_t times) { take({times > 0 ? "true" : "false"}); }, o.help);
	} else {
		made = app.add_option(flags, take, o.help)->type_name(o.type)->type_size(1);
		made->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
		// without the last call, [a,b] would be taken apart
		if (o.is_list)
			made->expected(-1)->allow_extra_args(); // at least one
		else
			made->expected(1)->allow_extra_args(false);
	}
	if (o.is_required && !o.other) made->required();
	if (o.needed) made->needs(added.at(o.needed));
	added[&o] = made;
}

void add_options(CLI::App& app, Command& c, Options& added) {
	app.set_help_flag("-h,--help", c.options.front().help);
	for (size_t i = 1; i < c.options.size(); ++i)
		if (c.options[i].take) add_option(app, c.options[i], added);
	if (!c.version.empty()) app.set_version_flag("--version", c.version);
	for (const auto& sub : c.commands) add_options(*app.add_subcommand(sub->name, sub->summary), *sub, added);
	if (c.needs_command)
		app.require_subcommand(1);
	else if (!c.commands.empty())
		app.require_subcommand(0, 1);
}

const Command& named(const Command& root, const CLI::App& app) {
	const Command* c = &root;
	for (auto below = app.get_subcommands(); !below.empty(); below = below.back()->get_subcommands())
		c = c->find_command(below.back()->get_name());
	return *c;
}

} // namespace

Parsed parse(Command& root, int argc, char** argv) {
	CLI::App app(root.summary, root.name);
	app.allow_windows_style_options(false); // subcommands take it over; /x is a file everywhere
	Options added;
	add_options(app, root, added);
	try {
		std::vector<std::string> words = plain_words(root, argc, argv);
		std::ranges::reverse(words); // CLI11 expects them in reverse order
		app.parse(std::move(words));
	} catch (const CLI::ParseError& e) {
		const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
		const bool no_command = root.needs_command && app.get_subcommands().empty();
		if (!no_command || extras.empty()) {
			if (dynamic_cast<const CLI::CallForHelp*>(&e)) return {&named(root, app), true, false};
			if (dynamic_cast<const CLI::CallForVersion*>(&e)) return {&root, false, true};
		}
		const Command& at = named(root, app);
		if (at.needs_command && at.parent && extras.empty())
			return {&at, true, false}; // its help lists what may follow
		// a mistyped --model is also reported as missing: report the unknown word, which is more helpful
		if (!extras.empty()) fail(Code::Invalid, "{}", unknown_word(named(root, app), extras.front()));
		if (no_command) fail(Code::Invalid, "no command given; see {} --help", root.name);
		if (dynamic_cast<const CLI::ArgumentMismatch*>(&e)) { // "--stop: 1 required TEXT missing"
			const std::string what = e.what();
			fail(Code::Invalid, "{} needs a value; see kvrun {} --help", what.substr(0, what.find(':')), at.path());
		}
		if (dynamic_cast<const CLI::RequiredError*>(&e)) // "name is required"
			for (const Option& o : at.options)
				if (!o.positional.empty() && e.what() == o.positional + " is required")
					fail(Code::Invalid, "kvrun {} needs {}: {}", at.path(), o.type, o.help);
		fail(Code::Invalid, "{}", e.what());
	} catch (const std::logic_error& e) { // of the standard library's conversions
		fail(Code::Invalid, "{}", e.what());
	}
	return {&named(root, app), false, false};
}

} // namespace kvrun
