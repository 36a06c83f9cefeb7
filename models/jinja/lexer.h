// Splits a template into tokens, with the white space control of HF's environment (trim_blocks, lstrip_blocks).
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::jinja {

struct Token {
	enum Type : uint8_t {
		Data,
		VariableBegin,
		VariableEnd,
		BlockBegin,
		BlockEnd,
		Name,
		Text,
		Int,
		Float,
		Operator,
		End
	};
	Type type = End;
	uint32_t line = 1;
	std::string_view text; // Data, Name, Text (escapes resolved), Operator
	int64_t integer = 0;
	double number = 0;
};

// Storage of a parsed template: its text, and texts derived from it. Views into both stay valid.
struct Source {
	std::string name;                 // for messages
	std::string text;                 // newlines are \n; one newline at the end is dropped
	std::deque<std::string> literals; // text literals with escapes
};

// Throws Error{Format} if the text is not a template: "NAME, line N: what".
std::vector<Token> tokenize(Source&);
[[noreturn]] void fail_syntax(const Source&, uint32_t line, const std::string& what);

} // namespace kvrun::jinja
