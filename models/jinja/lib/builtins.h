// Built-in filters, tests, methods and functions, found by name.
#pragma once
#include "models/jinja/operators.h"
#include <array>

namespace kvrun::jinja {

struct Named {
	Value name; // Text; with **dict it may come from the conversation
	Value value;
};

struct Args {                // of a call
	std::string_view callee; // for messages
	std::vector<Value> list;
	std::vector<Named> named;
};

struct Builtin {
	std::string_view name;
	Value (*call)(Run&, const Value& self, const Args&); // self: the filtered or tested value, the method's object
};

struct Method {
	Value self;
	const Builtin* builtin;
};

// nullptr: unknown name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);
const Builtin* find_method(Kind, std::string_view name);
bool changes_its_object(Kind, std::string_view name); // a method of Python that is refused

Value call_filter(Run&, std::string_view name, const Value& self, const Args&);
bool call_test(Run&, std::string_view name, const Value& self, const Args&);

// The arguments as values of the parameters `names`; null: not given. Fails on an argument without a parameter, and if
// one of the first `required` parameters is missing.
template <size_t N> using Bound = std::array<const Value*, N>;
void bind(Run&, const Args&, std::span<const char* const> names, size_t required, const Value** out);
template <size_t N> Bound<N> bind(Run& run, const Args& args, const char* const (&names)[N], size_t required = 0) {
	Bound<N> out{};
	bind(run, args, names, required, out.data());
	return out;
}
void no_arguments(Run&, const Args&);

// Argument `v` of call `args`, converted to the type it must have; `fallback` if it was not given.
int64_t int_argument(Run&, const Args& args, const Value* v, int64_t fallback);
std::string_view text_argument(Run&, const Args& args, const Value* v, std::string_view fallback);
inline bool flag_argument(const Value* v, bool fallback) { return v ? truth(*v) : fallback; }

} // namespace kvrun::jinja
