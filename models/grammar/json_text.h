// JSON as rules: strings, numbers, values of any type.
#pragma once
#include "models/grammar/rules.h"
#include <optional>
#include <string>

namespace kvrun::grammar {

// Notation of values: JSON, or that of a family's calls of tools.
struct Dialect {
	const char *open = "\"", *close = "\""; // around a string
	bool escapes = true;                    // strings have JSON's escapes; else they are verbatim, without <
	bool bare_keys = false;                 // keys without quotes
	bool spaces = true;                     // between parts
	const char *yes = "true", *no = "false", *null = "null";
};
constexpr Dialect kJsonDialect{}, kPythonDialect{"\"", "\"", true, false, true, "True", "False", "None"},
    kBareDialect{"", "", false, false, false};

class JsonText {
 public:
	explicit JsonText(Rules& r, const Dialect& d = kJsonDialect) : rules_(r), dialect_(d) {}

	const Dialect& dialect() const { return dialect_; }
	ExprId key(const std::string& name);

	ExprId space(); // between parts of an array or object: nothing, one space, or a new line with indent
	ExprId text(std::string_view bytes) { return rules_.text(bytes); }
	ExprId string(uint32_t least = 0, uint32_t most = kNoLimit); // with quotes; lengths in characters
	// One character inside a string, in JSON's notation.
	ExprId character(); // any
	ExprId characters(const std::vector<CharRange>&);
	ExprId key_except(const std::vector<std::string>& names); // a string without escapes that differs from all names
	ExprId value();                                           // of any type
	ExprId any_object();
	ExprId any_array();
	ExprId integer();
	ExprId number();
	ExprId digits(uint32_t least, uint32_t most) { return rules_.repeat(rules_.chars({{'0', '9'}}), least, most); }
	ExprId list(ExprId item, uint32_t least = 0, uint32_t most = kNoLimit); // an array
	ExprId comma(ExprId item);                                              // an item after another one
	ExprId member(ExprId key, ExprId value);
	// Members in order, separated by commas; those not required may be missing. head, tail: what may follow if no
	// member has been written, and if some have.
	struct Member {
		ExprId text;
		bool required;
	};
	ExprId in_order(const std::vector<Member>&, ExprId head, ExprId tail);
	// Makes a rule of this name with the body; returns a call of it.
	ExprId named(const char* name, ExprId body);

 private:
	Rules& rules_;
	const Dialect dialect_;
	std::optional<ExprId> space_, character_, string_, value_, object_, array_, number_, integer_;
};

// Limits of integers and decimals, as text like "-12.5"; no value: no limit.
struct NumberLimits {
	std::optional<std::string> least, most;
	bool least_excluded = false, most_excluded = false;
};
std::optional<ExprId> integer_between(Rules&, int64_t least, int64_t most); // nullopt: no such number
std::optional<ExprId> decimal_between(Rules&, const NumberLimits&);

} // namespace kvrun::grammar
