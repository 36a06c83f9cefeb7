// Options of a command line with strict value checks; messages name flag, value and range.
#include "tools/args.h"
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

struct Names {         // of one option
	std::string plain; // those CLI11 reads, comma-separated
	std::string shown; // the one messages use: the first long one
};

// Names of one dash and several letters go to Command::words: CLI11 would read them as several flags.
Names split_names(Command& c, const std::string& flags) {
	Names n;
	std::vector<std::string> words;
	for (size_t at = 0; at < flags.size();) {
		const size_t end = std::min(flags.find(',', at), flags.size());
		const std::string name = flags.substr(at, end - at);
		if (name.size() > 2 && name[0] == '-' && name[1] != '-')
			words.push_back(name);
		else
			n.plain += (n.plain.empty() ? "" : ",") + name;
		if (n.shown.empty() && name.starts_with("--")) n.shown = name;
		at = end + 1;
	}
	if (n.shown.empty()) n.shown = flags;
	for (const std::string& w : words) c.words[w] = n.shown;
	return n;
}

// All values go through here: CLI11's own conversions are bypassed, so that every message has one form.
CLI::Option* add_values(Command& c, const Names& names, const std::string& type, const std::string& help,
                        std::function<void(const std::vector<std::string>&)> take) {
	CLI::Option* o = c.add_option(
	    names.plain,
	    [take](const CLI::results_t& given) {
		    take(given);
		    return true;
	    },
	    help);
	// without the last call, [a,b] would be taken apart
	return o->type_name(type)
	    ->type_size(1)
	    ->expected(1)
	    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
	    ->allow_extra_args(false);
}

// `take` gets the option's name as messages show it, and the value.
CLI::Option* add_value(Command& c, const std::string& flags, const std::string& type, const std::string& help,
                       std::function<void(const std::string& name, const std::string&)> take) {
	const Names names = split_names(c, flags);
	return add_values(c, names, type, help, [name = names.shown, take](const std::vector<std::string>& given) {
		if (given.size() != 1) fail(Code::Invalid, "{} is given {} times; give it once", name, given.size());
		take(name, given[0]);
	});
}

// Bits by which a suffix shifts: K, M, G, with or without iB; -1: unknown.
int unit_shift(std::string_view unit) {
	if (unit.empty()) return 0;
	if (unit.size() > 1 && unit.substr(1) != "iB") return -1;
	const size_t i = std::string_view("kmgKMG").find(unit[0]);
	return i == std::string_view::npos ? -1 : 10 * int(i % 3 + 1);
}

int64_t to_integer(const std::string& name, std::string_view s, int64_t lowest, int64_t highest, bool suffix = false) {
	int64_t v = 0;
	const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
	std::string_view unit(end, size_t(s.data() + s.size() - end));
	if (unit.size() > 1) unit = "?"; // 128k, but not 128kiB
	const int shift = suffix && ec == std::errc() && v >= 0 ? unit_shift(unit) : unit.empty() ? 0 : -1;
	if (s.empty() || ec != std::errc() || shift < 0 || v < lowest || v > highest >> shift || v << shift < lowest)
		fail(Code::Invalid, "{} is '{}', expected an integer from {} to {}{}", name, one_line(s), lowest, highest,
		     suffix ? ", like 4096 or 32k" : "");
	return v << shift;
}

} // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
	if (word.size() < 3 || word.size() > 64) return {}; // -q is near every flag; long words cost time
	std::string best;
	size_t best_edits = std::max<size_t>(1, word.size() / 3) + 1;
	for (const std::string& w : words) {
		// --temp for --temperature, and the other way round
		const bool prefix = w.rfind(word, 0) == 0 || (w.size() > 4 && word.rfind(w, 0) == 0);
		const size_t edits = prefix ? 1 : edit_distance(word, w);
		if (edits < best_edits) best_edits = edits, best = w;
	}
	return best;
}

CLI::Option* add_integer(Command& c, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                         const std::string& help) {
	return add_value(c, flags, "N", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		value = to_integer(name, s, lowest, highest);
	});
}

CLI::Option* add_tokens(Command& c, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                        const std::string& help) {
	return add_value(c, flags, "N", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		value = to_integer(name, s, lowest, highest, /*suffix=*/true);
	});
}

CLI::Option* add_real(Command& c, const std::string& flags, double& value, double lowest, double highest,
                      const std::string& help) {
	return add_value(c, flags, "X", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		double v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		// written so that NaN fails; a value too small for a double is refused like any other bad one
		const bool good = !s.empty() && end == s.data() + s.size() && ec == std::errc() && v >= lowest && v <= highest;
		if (!good)
			fail(Code::Invalid, "{} is '{}', expected a number from {} to {}", name, one_line(s), lowest, highest);
		value = v;
	});
}

CLI::Option* add_text(Command& c, const std::string& flags, std::string& value, const std::string& type,
                      const std::string& help) {
	return add_value(c, flags, type, help, [&value](const std::string&, const std::string& s) { value = s; });
}

CLI::Option* add_texts(Command& c, const std::string& flags, std::vector<std::string>& values, const std::string& type,
                       const std::string& help) {
	return add_values(c, split_names(c, flags), type, help,
	                  [&values](const std::vector<std::string>& given) { values = given; });
}

CLI::Option* add_integers(Command& c, const std::string& flags, std::vector<int64_t>& values, int64_t lowest,
                          int64_t highest, const std::string& help) {
	return add_value(c, flags, "N,N..", help,
	                 [&values, lowest, highest](const std::string& name, const std::string& s) {
		                 values.clear();
		                 for (size_t from = 0; from <= s.size();) {
			                 const size_t comma = std::min(s.find(',', from), s.size());
			                 values.push_back(to_integer(name, std::string_view(s).substr(from, comma - from), lowest,
			                                             highest, true));
			                 from = comma + 1;
		                 }
	                 });
}

CLI::Option* add_choice(Command& c, const std::string& flags, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
	CLI::Option* o =
	    add_value(c, flags, "WORD", help, [&value, choices](const std::string& name, const std::string& s) {
		    if (std::find(choices.begin(), choices.end(), s) == choices.end())
			    fail(Code::Invalid, "{} is '{}', expected {}", name, one_line(s), fmt::join(choices, " or "));
		    value = s;
	    });
	c.choices[o] = choices;
	return o;
}

CLI::Option* add_bytes(Command& c, const std::string& flags, uint64_t& value, const std::string& help) {
	return add_value(c, flags, "BYTES", help, [&value](const std::string& name, const std::string& s) {
		uint64_t v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		const int shift = unit_shift({end, size_t(s.data() + s.size() - end)});
		if (s.empty() || ec != std::errc() || shift < 0 || v > (uint64_t(1) << 46) >> shift)
			fail(Code::Invalid, "{} is '{}', expected a number of bytes up to 64 TiB, like 512M, 2G or 8GiB", name,
			     one_line(s));
		value = v << shift;
	});
}

CLI::Option* add_flag(Command& c, const std::string& flags, bool& value, const std::string& help) {
	return c.add_flag(split_names(c, flags).plain, value, help);
}

CLI::Option* add_ignored(Command& c, const std::string& flags, const std::string& type,
                         const std::vector<std::string>& choices, const std::string& why) {
	const std::string typed = flags.substr(0, flags.find(',')); // the name llama.cpp's users know
	CLI::Option* o = add_value(c, flags, type, why, [typed, why](const std::string&, const std::string&) {
		std::fputs(fmt::format("warning: {} has no effect: {}\n", typed, why).c_str(), stderr);
	});
	if (!choices.empty()) {
		c.choices[o] = choices;
		for (const std::string& n : o->get_lnames()) c.implied["--" + n] = choices.front();
	}
	return o->group(kIgnoredGroup);
}

std::vector<const Command*> Command::commands() const {
	std::vector<const Command*> out;
	for (const CLI::App* a : get_subcommands([](const CLI::App*) { return true; }))
		out.push_back(static_cast<const Command*>(a)); // add_command() makes them all
	return out;
}

const Command* Command::find_command(std::string_view name) const {
	for (const Command* c : commands())
		if (c->get_name() == name) return c;
	return nullptr;
}

Command& add_command(Command& parent, const std::string& name, const std::string& summary) {
	const auto c = std::make_shared<Command>(name, summary);
	c->set_help_flag("-h,--help", "print this help");
	parent.add_subcommand(c);
	return *c;
}

} // namespace kvrun
