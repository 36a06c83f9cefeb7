// Options of a command line: strict numbers that name flag, value and range.
#include "tools/args.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

// Edits between two words; a swap of neighbours is one.
size_t distance(std::string_view a, std::string_view b) {
	std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
	for (size_t i = 0; i <= a.size(); ++i) {
		for (size_t j = 0; j <= b.size(); ++j) {
			if (i == 0 || j == 0) {
				d[i][j] = i + j;
				continue;
			}
			d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
		}
	}
	return d[a.size()][b.size()];
}

// The longest of the names, as messages show it: "-n,--predict" -> "--predict".
std::string shown(const std::string& flags) {
	const size_t comma = flags.rfind(',');
	return comma == std::string::npos ? flags : flags.substr(comma + 1);
}

// All values go through here: CLI11's own conversions are bypassed, so that every message has one form.
CLI::Option* add_values(CLI::App& app, const std::string& flags, const std::string& type, const std::string& help,
                        std::function<void(const std::vector<std::string>&)> take) {
	CLI::Option* o = app.add_option(
	    flags,
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

CLI::Option* add_value(CLI::App& app, const std::string& flags, const std::string& type, const std::string& help,
                       std::function<void(const std::string&)> take) {
	return add_values(app, flags, type, help, [name = shown(flags), take](const std::vector<std::string>& given) {
		if (given.size() != 1) fail(Code::Invalid, "{} is given {} times; give it once", name, given.size());
		take(given[0]);
	});
}

int64_t to_integer(const std::string& name, std::string_view s, int64_t lowest, int64_t highest) {
	int64_t v = 0;
	const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
	const bool number = !s.empty() && end == s.data() + s.size() && ec != std::errc::invalid_argument;
	if (!number || ec == std::errc::result_out_of_range || v < lowest || v > highest)
		fail(Code::Invalid, "{} is '{}', expected an integer from {} to {}", name, one_line(s), lowest, highest);
	return v;
}

} // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
	if (word.size() < 3 || word.size() > 64) return {}; // -q is near every flag; and the table stays small
	std::string best;
	size_t best_edits = std::max<size_t>(1, word.size() / 3) + 1;
	for (const std::string& w : words) {
		// --temp for --temperature, and the other way round
		const bool prefix = w.rfind(word, 0) == 0 || (w.size() > 4 && word.rfind(w, 0) == 0);
		const size_t edits = prefix ? 1 : distance(word, w);
		if (edits < best_edits) best_edits = edits, best = w;
	}
	return best;
}

CLI::Option* add_integer(CLI::App& app, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                         const std::string& help) {
	return add_value(app, flags, "N", help, [name = shown(flags), &value, lowest, highest](const std::string& s) {
		value = to_integer(name, s, lowest, highest);
	});
}

CLI::Option* add_real(CLI::App& app, const std::string& flags, double& value, double lowest, double highest,
                      const std::string& help) {
	return add_value(app, flags, "X", help, [name = shown(flags), &value, lowest, highest](const std::string& s) {
		double v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		// written so that NaN fails; a value too small for a double is refused like any other bad one
		const bool good = !s.empty() && end == s.data() + s.size() && ec == std::errc() && v >= lowest && v <= highest;
		if (!good)
			fail(Code::Invalid, "{} is '{}', expected a number from {} to {}", name, one_line(s), lowest, highest);
		value = v;
	});
}

CLI::Option* add_text(CLI::App& app, const std::string& flags, std::string& value, const std::string& type,
                      const std::string& help) {
	return add_value(app, flags, type, help, [&value](const std::string& s) { value = s; });
}

CLI::Option* add_texts(CLI::App& app, const std::string& flags, std::vector<std::string>& values,
                       const std::string& type, const std::string& help) {
	return add_values(app, flags, type, help, [&values](const std::vector<std::string>& given) { values = given; });
}

CLI::Option* add_integers(CLI::App& app, const std::string& flags, std::vector<int64_t>& values, int64_t lowest,
                          int64_t highest, const std::string& help) {
	return add_value(app, flags, "N,N..", help, [name = shown(flags), &values, lowest, highest](const std::string& s) {
		values.clear();
		for (size_t from = 0; from <= s.size();) {
			const size_t comma = std::min(s.find(',', from), s.size());
			values.push_back(to_integer(name, std::string_view(s).substr(from, comma - from), lowest, highest));
			from = comma + 1;
		}
	});
}

CLI::Option* add_choice(CLI::App& app, const std::string& flags, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
	return add_value(app, flags, "WORD", help, [name = shown(flags), &value, choices](const std::string& s) {
		if (std::find(choices.begin(), choices.end(), s) == choices.end())
			fail(Code::Invalid, "{} is '{}', expected {}", name, one_line(s), fmt::join(choices, " or "));
		value = s;
	});
}

CLI::Option* add_bytes(CLI::App& app, const std::string& flags, uint64_t& value, const std::string& help) {
	return add_value(app, flags, "BYTES", help, [name = shown(flags), &value](const std::string& s) {
		uint64_t v = 0;
		const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
		const std::string_view unit(end, size_t(s.data() + s.size() - end));
		const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
		if (s.empty() || ec != std::errc() || shift < 0 || v > (uint64_t(1) << 46) >> shift)
			fail(Code::Invalid, "{} is '{}', expected a number of bytes up to 64 TiB, like 512M or 2G", name,
			     one_line(s));
		value = v << shift;
	});
}

} // namespace kvrun
