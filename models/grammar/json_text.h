// JSON as rules: texts, numbers, values of any kind.
#pragma once
#include "models/grammar/rules.h"
#include <optional>
#include <string>

namespace kvrun::grammar {

// How values are written: as JSON, or as calls of tools in the form of some family.
struct Dialect {
	const char *open = "\"", *close = "\""; // around a string
	bool escapes = true;                    // strings as JSON has them; else as they are, without the character <
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

	ExprId space(); // between the parts of an array or an object: none, one space, or a new line
	ExprId text(std::string_view bytes) { return rules_.text(bytes); }
	ExprId string(uint32_t least = 0, uint32_t most = kNoLimit); // with quotes; lengths in characters
	// One character inside a string, as JSON writes it.
	ExprId character(); // any
	ExprId characters(const std::vector<CharRange>&);
	ExprId key_except(const std::vector<std::string>& names); // a string that is none of these, without escapes
	ExprId value();                                           // of any kind
	ExprId any_object();
	ExprId any_array();
	ExprId integer();
	ExprId number();
	ExprId digits(uint32_t least, uint32_t most) { return rules_.repeat(rules_.chars({{'0', '9'}}), least, most); }
	ExprId list(ExprId item, uint32_t least = 0, uint32_t most = kNoLimit); // between [ and ]
	ExprId comma(ExprId item);                                              // behind another
	ExprId member(ExprId key, ExprId value);
	// Members in their order, those that are not required perhaps left out, with commas between. head, tail: what may
	// follow where none, and where some have been written.
	struct Member {
		ExprId text;
		bool required;
	};
	ExprId in_order(const std::vector<Member>&, ExprId head, ExprId tail);
	// As a rule of its own, called by its name.
	ExprId named(const char* name, ExprId body);

 private:
	Rules& rules_;
	const Dialect dialect_;
	std::optional<ExprId> space_, character_, string_, value_, object_, array_, number_, integer_;
};

// Integers from least to most; decimals from least to most, both as text like "-12.5". No value: no limit.
struct NumberLimits {
	std::optional<std::string> least, most;
	bool least_excluded = false, most_excluded = false;
};
std::optional<ExprId> integer_between(Rules&, int64_t least, int64_t most); // nullopt: there is none
std::optional<ExprId> decimal_between(Rules&, const NumberLimits&);

} // namespace kvrun::grammar
