// Values as text: Python's str(), repr() and json.dumps(), and format strings.
#pragma once
#include "models/jinja/lib/builtins.h"

namespace kvrun::jinja {

std::string float_text(double); // repr(): the shortest text that reads back as the same number
// Charges for `precision` digits after the point of a number.
void spend_digits(Run&, double, int64_t precision);
Value to_text(Run&, const Value&); // str()
Value repr(Run&, const Value&);

struct JsonStyle {
	std::optional<std::string> indent;        // of one level; none: all on one line
	std::string_view item = ", ", key = ": "; // separators
	bool ascii = false, sort_keys = false;
};
Value to_json(Run&, const Value&, const JsonStyle&);

Value format_percent(Run&, const Value& format, const Value& values); // format % values
Value format_braces(Run&, const Value& format, const Args& args);     // format.format(...)

} // namespace kvrun::jinja
