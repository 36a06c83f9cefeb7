// --help from the tree of commands, wrapped to the terminal.
#include "tools/help.h"
#include "engine/core/system/terminal.h"
#include <algorithm>
#include <cstdlib>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

constexpr size_t kTermColumns = 28; // descriptions begin at this column if lines are long enough for two columns
constexpr size_t kTwoColumns = 70;  // shortest such line

// Wraps `text` to lines of at most `columns`, all except the first indented; a longer word keeps its
// length.
std::string wrapped(const std::string& text, size_t columns, size_t indent, size_t at) {
	std::string out;
	bool first = true; // first word of its line
	const auto new_line = [&] {
		out += "\n" + std::string(indent, ' ');
		at = indent, first = true;
	};
	for (size_t from = 0; from < text.size();) {
		const size_t end = std::min(text.find_first_of(" \n", from), text.size());
		const std::string word = text.substr(from, end - from);
		if (!word.empty()) {
			if (!first && at + 1 + word.size() > columns) new_line();
			if (!first) out += ' ', ++at;
			out += word, at += word.size(), first = false;
		}
		if (end < text.size() && text[end] == '\n') new_line();
		from = end + 1;
	}
	return out + "\n";
}

// A term and its meaning: side by side, or the meaning below if the term or the terminal leaves no room.
std::string entry(const std::string& term, const std::string& text, size_t columns, size_t term_columns) {
	std::string out = "  " + term;
	const size_t indent = columns < kTwoColumns ? 6 : term_columns;
	if (out.size() + 2 > indent)
		out += "\n" + std::string(indent, ' ');
	else
		out += std::string(indent - out.size(), ' ');
	return out + wrapped(text, columns, indent, indent);
}

std::string term_of(const Option& o) {
	const std::string term = fmt::format("{}", fmt::join(o.names(), ", "));
	if (term.empty()) return o.type; // positional
	if (o.type.empty()) return o.choices.empty() ? term : term + " [" + value_name(o) + "]";
	return term + " " + value_name(o);
}

std::string section_text(const Section& s, size_t columns) {
	std::string out = "\n" + s.title + ":\n";
	if (!s.text.empty()) out += "  " + wrapped(s.text, columns, 2, 2);
	size_t widest = 0;
	for (const Entry& e : s.entries) widest = std::max(widest, e.term.size());
	for (const Entry& e : s.entries) out += entry(e.term, e.text, columns, std::min(widest + 4, kTermColumns));
	return out;
}

} // namespace

std::string value_name(const Option& o) {
	if (o.choices.empty() || !o.positional.empty()) return o.type;
	return fmt::format("{}", fmt::join(o.choices, "|"));
}

std::string help_of(const Option& o) {
	return o.is_required && !o.other && o.positional.empty() ? o.help + " (required)" : o.help;
}

std::vector<std::pair<std::string, std::vector<const Option*>>> option_groups(const Command& c) {
	std::vector<std::pair<std::string, std::vector<const Option*>>> out;
	const auto add = [&](const Option& o) {
		const auto at = std::ranges::find(out, o.group_name, [](const auto& g) { return g.first; });
		(at != out.end() ? *at : out.emplace_back(o.group_name, std::vector<const Option*>())).second.push_back(&o);
	};
	const Option& help = c.options.front();
	for (const Option& o : c.options)
		if (&o != &help && o.group_name != kIgnoredGroup) add(o);
	const bool other = std::ranges::any_of(out, [](const auto& g) { return g.first == kOtherGroup; });
	add(help);
	if (other) // last, after the named groups
		std::stable_partition(out.begin(), out.end(), [](const auto& g) { return g.first != kOtherGroup; });
	for (const Option& o : c.options)
		if (o.group_name == kIgnoredGroup) add(o);
	return out;
}

std::string usage_line(const Command& c) {
	if (!c.parent && !c.commands.empty()) return c.name + " COMMAND [OPTIONS]";
	std::string out = c.needs_command ? " COMMAND [OPTIONS]" : " [OPTIONS]";
	const Command* a = &c;
	for (; a->parent; a = a->parent) out = " " + a->name + out;
	out = a->name + out;
	for (const Option& o : c.options)
		if (!o.positional.empty()) out += o.is_required ? " " + o.type : " [" + o.type + "]";
	return out;
}

size_t help_columns() {
	size_t columns = sys::columns_of(1);
	if (const char* c = std::getenv("COLUMNS"); columns == 0 && c) columns = std::strtoul(c, nullptr, 10);
	return columns == 0 ? 80 : std::clamp<size_t>(columns, 40, 120);
}

std::string help_text(const Command& c, size_t columns) {
	const bool root = !c.parent && !c.commands.empty(); // a program without commands has only options
	std::string out = wrapped(c.summary, columns, 0, 0);
	out += "\n" + wrapped("Usage: " + usage_line(c), columns, 7, 0);
	if (!c.examples.empty()) out += "\nExamples:\n";
	for (const Entry& e : c.examples) out += fmt::format("  {}\n      {}", e.term, wrapped(e.text, columns, 6, 6));
	if (!c.commands.empty()) {
		out += "\nCommands:\n";
		for (const auto& sub : c.commands) out += entry(sub->name, sub->summary, columns, 14);
	}
	for (const auto& [group, options] : option_groups(c)) {
		out += "\n" + group + ":\n";
		if (group != kIgnoredGroup) {
			for (const Option* o : options) out += entry(term_of(*o), help_of(*o), columns, kTermColumns);
			continue;
		}
		std::vector<std::string> names; // the man page says why
		for (const Option* o : options)
			for (const std::string& n : o->names()) names.push_back(n);
		out += "  " + wrapped(fmt::format("{}", fmt::join(names, ", ")), columns, 2, 2);
	}
	bool more = false;
	for (const Section& s : c.sections) {
		if (s.man_only)
			more = true;
		else
			out += section_text(s, columns);
	}
	if (root)
		out +=
		    "\n" + wrapped("kvrun help COMMAND, or kvrun COMMAND --help, lists a command's options; man kvrun, and man "
		                   "kvrun-COMMAND, say more.",
		                   columns, 0, 0);
	else if (more)
		out += "\n" +
		       wrapped("The keys of the JSON: man kvrun-" + c.name + ", or kvrun help --man " + c.name + " | man -l -",
		               columns, 0, 0);
	return out;
}

} // namespace kvrun
