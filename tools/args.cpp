// Options of a command line with strict value checks; messages name flag, value and range.
#include "tools/args.h"
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/split.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

// All values go through here: CLI11's own conversions are bypassed, so that all messages have the same form.
Option* add_values(Command& c, const std::string& flags, const std::string& type, const std::string& help,
                   std::function<void(const std::vector<std::string>&)> take) {
	Option& o = c.options.emplace_back();
	o.flags = flags, o.type = type, o.help = help, o.take = std::move(take);
	for (size_t at = 0; at < flags.size();) {
		const size_t end = std::min(flags.find(',', at), flags.size());
		const std::string name = flags.substr(at, end - at);
		if (name[0] != '-')
			o.positional = name;
		else
			(name[1] == '-' ? o.longs : name.size() > 2 ? o.words : o.shorts).push_back(name);
		at = end + 1;
	}
	return &o;
}

// `take` gets the option's name as messages show it, and the value.
Option* add_value(Command& c, const std::string& flags, const std::string& type, const std::string& help,
                  std::function<void(const std::string& name, const std::string&)> take) {
	Option* o = add_values(c, flags, type, help, {});
	const bool free = !o->positional.empty(); // also without its name: which one counts would be a guess
	o->take = [name = o->shown(), free, take = std::move(take)](const std::vector<std::string>& given) {
		if (given.size() > 1 && free) fail(Code::Invalid, "{} is given {} times; give it once", name, given.size());
		if (given.size() > 1)
			std::fputs(fmt::format("warning: {} is given {} times; the last one counts\n", name, given.size()).c_str(),
			           stderr);
		take(name, given.back());
	};
	return o;
}

// Bits by which a suffix shifts: K, M, G, with or without iB; -1: unknown.
int unit_shift(std::string_view unit) {
	if (unit.empty()) return 0;
	if (unit.size() > 1 && unit.substr(1) != "iB") return -1;
	const size_t i = std::string_view("kmgKMG").find(unit[0]);
	return i == std::string_view::npos ? -1 : 10 * int(i % 3 + 1);
}

std::optional<int64_t> read_integer(std::string_view s, int64_t lowest, int64_t highest, bool suffix) {
	int64_t v = 0;
	const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
	std::string_view unit(end, size_t(s.data() + s.size() - end));
	if (unit.size() > 1) unit = "?"; // 128k, but not 128kiB
	const int shift = suffix && ec == std::errc() && v >= 0 ? unit_shift(unit) : unit.empty() ? 0 : -1;
	if (s.empty() || ec != std::errc() || shift < 0 || v < lowest || v > highest >> shift || v << shift < lowest)
		return {};
	return v << shift;
}

int64_t to_integer(const std::string& name, std::string_view s, int64_t lowest, int64_t highest, bool suffix = false) {
	if (const auto v = read_integer(s, lowest, highest, suffix)) return *v;
	fail(Code::Invalid, "{} is '{}', expected an integer from {} to {}{}", name, one_line(s), lowest, highest,
	     suffix && highest >= 32768 ? ", like 4096 or 32k" : "");
}

} // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
	if (word.size() < 3 || word.size() > 64) return {}; // -q is similar to every flag; long words cost time
	std::string best;
	size_t best_edits = std::max<size_t>(1, word.size() / 3) + 1;
	for (const std::string& w : words) {
		// --temp for --temperature, and vice versa
		const bool prefix = w.rfind(word, 0) == 0 || (w.size() > 4 && word.rfind(w, 0) == 0);
		const size_t edits = prefix ? 1 : edit_distance(word, w);
		if (edits < best_edits) best_edits = edits, best = w;
	}
	return best;
}

Option* add_integer(Command& c, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                    const std::string& help) {
	return add_value(c, flags, "N", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		value = to_integer(name, s, lowest, highest);
	});
}

std::optional<int64_t> token_count(std::string_view text, int64_t lowest, int64_t highest) {
	return read_integer(text, lowest, highest, /*suffix=*/true);
}

Option* add_tokens(Command& c, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                   const std::string& help) {
	return add_value(c, flags, "N", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		value = to_integer(name, s, lowest, highest, /*suffix=*/true);
	});
}

Option* add_real(Command& c, const std::string& flags, double& value, double lowest, double highest,
                 const std::string& help) {
	return add_value(c, flags, "X", help, [&value, lowest, highest](const std::string& name, const std::string& s) {
		double v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		// written so that NaN fails; a value that underflows a double is also refused
		const bool good = !s.empty() && end == s.data() + s.size() && ec == std::errc() && v >= lowest && v <= highest;
		if (!good)
			fail(Code::Invalid, "{} is '{}', expected a number from {} to {}", name, one_line(s), lowest, highest);
		value = v;
	});
}

Option* add_text(Command& c, const std::string& flags, std::string& value, const std::string& type,
                 const std::string& help) {
	return add_value(c, flags, type, help,
	                 [&value, file = type == kFile](const std::string& name, const std::string& s) {
		                 if (file && s.empty())
			                 fail(Code::Invalid, "{} is empty, expected the name of a file", name); // of a variable
		                 value = s;
	                 });
}

Option* add_texts(Command& c, const std::string& flags, std::vector<std::string>& values, const std::string& type,
                  const std::string& help) {
	return add_values(c, flags, type, help, [&values](const std::vector<std::string>& given) { values = given; });
}

Option* add_positionals(Command& c, const std::string& name, std::vector<std::string>& values, const std::string& type,
                        const std::string& help) {
	Option* o = add_texts(c, name, values, type, help);
	o->is_list = true;
	return o->required();
}

Option* add_integers(Command& c, const std::string& flags, std::vector<int64_t>& values, int64_t lowest,
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

Option* add_choice(Command& c, const std::string& flags, std::string& value, const std::vector<std::string>& choices,
                   const std::string& help) {
	Option* o = add_value(c, flags, "WORD", help, [&value, choices](const std::string& name, const std::string& s) {
		if (std::find(choices.begin(), choices.end(), s) == choices.end())
			fail(Code::Invalid, "{} is '{}', expected {}", name, one_line(s), fmt::join(choices, " or "));
		value = s;
	});
	o->choices = choices;
	return o;
}

Option* add_bytes(Command& c, const std::string& flags, uint64_t& value, const std::string& help) {
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

Option* add_rate(Command& c, const std::string& flags, double& value, const std::string& help) {
	return add_value(c, flags, "RATE", help, [&value](const std::string& name, const std::string& s) {
		double v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		std::string_view unit(end, size_t(s.data() + s.size() - end));
		if (unit.ends_with("/s")) unit.remove_suffix(2);
		if (unit.ends_with("B")) unit.remove_suffix(1);
		const double factor = unit == "G" ? 1e9 : unit == "M" ? 1e6 : unit.empty() ? 1 : 0;
		if (s.empty() || ec != std::errc() || factor == 0 || !(v * factor >= 1e3 && v * factor <= 1e15))
			fail(Code::Invalid, "{} is '{}', expected bytes per second from 1000 to 1000000G, like 12G/s or 900M", name,
			     one_line(s));
		value = v * factor;
	});
}

Option* add_flag(Command& c, const std::string& flags, bool& value, const std::string& help) {
	return add_values(c, flags, "", help,
	                  [&value](const std::vector<std::string>& given) { value = given.back() == "true"; });
}

void warn_no_effect(const std::string& option, const std::string& why) {
	std::fputs(fmt::format("warning: {} has no effect: {}\n", option, why).c_str(), stderr);
}

Option* add_ignored(Command& c, const std::string& flags, const std::string& type,
                    const std::vector<std::string>& choices, const std::string& why) {
	const std::string typed = flags.substr(0, flags.find(',')); // the name known from llama.cpp
	Option* o =
	    add_values(c, flags, type, why, [typed, why](const std::vector<std::string>&) { warn_no_effect(typed, why); });
	o->choices = choices;
	if (!choices.empty()) o->implied = choices.front();
	return o->group(kIgnoredGroup);
}

std::vector<std::string> listed_values(const std::vector<std::string>& given) {
	std::vector<std::string> out;
	for (const std::string& list : given)
		for (const std::string_view one : split(list, ',')) {
			const size_t first = one.find_first_not_of(' '), last = one.find_last_not_of(' ');
			if (first != one.npos) out.emplace_back(one.substr(first, last + 1 - first));
		}
	return out;
}

std::vector<std::string> Option::names() const {
	std::vector<std::string> out = shorts;
	out.insert(out.end(), words.begin(), words.end());
	out.insert(out.end(), longs.begin(), longs.end());
	return out;
}

std::string Option::shown() const { return longs.empty() ? flags : longs.front(); }

Command::Command(std::string n, std::string s) : name(std::move(n)), summary(std::move(s)) {
	add_values(*this, "-h,--help", "", "print this help", {});
}

void Command::add_version(const std::string& text) {
	version = text;
	add_values(*this, "--version", "", "print the version", {});
}

const Command* Command::find_command(std::string_view n) const {
	for (const auto& c : commands)
		if (c->name == n) return c.get();
	return nullptr;
}

const Option* Command::find_option(std::string_view flag) const {
	for (const Option& o : options)
		if (std::ranges::count(o.longs, flag) || std::ranges::count(o.shorts, flag)) return &o;
	return nullptr;
}

std::string Command::path() const { return parent && parent->parent ? parent->path() + " " + name : name; }

Command& add_command(Command& parent, const std::string& name, const std::string& summary) {
	Command& c = *parent.commands.emplace_back(std::make_unique<Command>(name, summary));
	c.parent = &parent;
	return c;
}

} // namespace kvrun
