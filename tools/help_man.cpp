// Man pages in roff from the tree of commands.
#include "tools/help.h"
#include <algorithm>
#include <cctype>
#include <fmt/format.h>

namespace kvrun {
namespace {

// Escapes text for roff; a newline becomes a line break.
std::string plain(const std::string& text) {
	std::string out;
	bool line_start = true;
	for (const char c : text) {
		if (line_start && (c == '.' || c == '\'')) out += "\\&"; // otherwise roff would read a request
		line_start = c == '\n';
		if (c == '\\')
			out += "\\e";
		else if (c == '-')
			out += "\\-";
		else if (c == '\n')
			out += "\n.br\n";
		else
			out += c;
	}
	return out;
}
std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string heading(const std::string& title) {
	std::string upper = title;
	for (char& c : upper) c = char(std::toupper(uint8_t(c)));
	return ".SH " + plain(upper) + "\n";
}

std::string option_entry(const Option& o) {
	std::string term;
	for (const std::string& n : o.names()) term += (term.empty() ? "" : ", ") + bold(n);
	if (!o.type.empty()) term += (term.empty() ? "" : " ") + italic(value_name(o));
	return fmt::format(".TP\n{}\n{}\n", term, plain(help_of(o)));
}

std::string section(const Section& s) {
	std::string out = heading(s.title);
	if (!s.text.empty()) out += plain(s.text) + "\n";
	for (const Entry& e : s.entries) out += fmt::format(".TP\n{}\n{}\n", bold(e.term), plain(e.text));
	return out;
}

std::string page_name(const Command& c) { return c.parent ? "kvrun-" + c.name : c.name; }

std::string see_also(const Command& c) {
	std::vector<std::string> pages;
	if (c.parent || c.commands.empty()) pages.push_back("kvrun"); // also for a separate program
	for (const auto& sub : (c.parent ? *c.parent : c).commands)
		if (sub.get() != &c) pages.push_back(page_name(*sub));
	std::string out;
	for (const std::string& p : pages) out += fmt::format(".BR {} (1){}\n", plain(p), &p == &pages.back() ? "" : ",");
	return out;
}

} // namespace

std::string man_page(const Command& c) {
	std::string upper = page_name(c);
	for (char& ch : upper) ch = char(std::toupper(uint8_t(ch)));
	std::string summary = c.summary; // "Continues a prompt." -> "continues a prompt"
	summary[0] = char(std::tolower(uint8_t(summary[0])));
	if (summary.ends_with('.')) summary.pop_back();
	// no date, so that the same source gives the same page
	std::string out = fmt::format(".TH {} 1 \"\" \"kvrun {}\" \"kvrun manual\"\n", plain(upper), KVRUN_VERSION);
	out += heading("Name") + plain(page_name(c)) + " \\- " + plain(summary) + "\n";
	out += heading("Synopsis") + bold(usage_line(c)) + "\n";
	if (!c.examples.empty()) out += heading("Examples");
	for (const Entry& e : c.examples) out += fmt::format(".TP\n{}\n{}\n", bold(e.term), plain(e.text));
	if (!c.commands.empty()) {
		out += heading("Commands");
		for (const auto& sub : c.commands) out += fmt::format(".TP\n{}\n{}\n", bold(sub->name), plain(sub->summary));
	}
	out += heading("Options");
	for (const auto& [group, options] : option_groups(c)) {
		out += fmt::format(".SS {}\n", plain(group));
		for (const Option* o : options) out += option_entry(*o);
	}
	for (const Section& s : c.sections) out += section(s);
	return out + heading("See also") + see_also(c);
}

} // namespace kvrun
