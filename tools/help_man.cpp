// Man pages in roff from the tree of commands.
#include "tools/help.h"
#include <algorithm>
#include <cctype>
#include <fmt/format.h>

namespace kvrun {
namespace {

// Text that roff prints as it is; a newline is a line break.
std::string plain(const std::string& text) {
	std::string out;
	bool line_start = true;
	for (const char c : text) {
		if (line_start && (c == '.' || c == '\'')) out += "\\&"; // else a request
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

std::string option_entry(const Command& c, const CLI::Option* o) {
	std::string term;
	for (const std::string& n : option_names(c, o).all()) term += (term.empty() ? "" : ", ") + bold(n);
	if (term.empty() || o->get_items_expected_min() > 0) term += (term.empty() ? "" : " ") + italic(value_name(c, o));
	return fmt::format(".TP\n{}\n{}\n", term, plain(o->get_description()));
}

std::string section(const Section& s) {
	std::string out = heading(s.title);
	if (!s.text.empty()) out += plain(s.text) + "\n";
	for (const Entry& e : s.entries) out += fmt::format(".TP\n{}\n{}\n", bold(e.term), plain(e.text));
	return out;
}

std::string page_name(const Command& c) { return c.get_parent() ? "kvrun-" + c.get_name() : "kvrun"; }

std::string see_also(const Command& c) {
	std::vector<std::string> pages;
	if (c.get_parent()) pages.push_back("kvrun");
	const Command& root = c.get_parent() ? *static_cast<const Command*>(c.get_parent()) : c;
	for (const Command* sub : root.commands())
		if (sub != &c) pages.push_back(page_name(*sub));
	std::string out;
	for (const std::string& p : pages) out += fmt::format(".BR {} (1){}\n", plain(p), &p == &pages.back() ? "" : ",");
	return out;
}

} // namespace

std::string man_page(const Command& c) {
	std::string upper = page_name(c);
	for (char& ch : upper) ch = char(std::toupper(uint8_t(ch)));
	std::string summary = c.get_description(); // "Continues a prompt." -> "continues a prompt"
	summary[0] = char(std::tolower(uint8_t(summary[0])));
	if (summary.ends_with('.')) summary.pop_back();
	// no date: the same source gives the same page
	std::string out = fmt::format(".TH {} 1 \"\" \"kvrun {}\" \"kvrun manual\"\n", plain(upper), KVRUN_VERSION);
	out += heading("Name") + plain(page_name(c)) + " \\- " + plain(summary) + "\n";
	out += heading("Synopsis") + bold(usage_line(c)) + "\n";
	if (!c.examples.empty()) out += heading("Examples");
	for (const Entry& e : c.examples) out += fmt::format(".TP\n{}\n{}\n", bold(e.term), plain(e.text));
	if (!c.get_parent()) {
		out += heading("Commands");
		for (const Command* sub : c.commands())
			out += fmt::format(".TP\n{}\n{}\n", bold(sub->get_name()), plain(sub->get_description()));
	}
	out += heading("Options");
	for (const auto& [group, options] : option_groups(c)) {
		out += fmt::format(".SS {}\n", plain(group));
		for (const CLI::Option* o : options) out += option_entry(c, o);
	}
	for (const Section& s : c.sections) out += section(s);
	return out + heading("See also") + see_also(c);
}

} // namespace kvrun
