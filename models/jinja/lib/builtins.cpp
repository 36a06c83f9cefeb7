// Finds filters, tests, methods and functions by name, and reads the arguments of their calls.
#include "models/jinja/lib/builtins.h"
#include "models/jinja/lib/tables.h"
#include <algorithm>

namespace kvrun::jinja {
namespace {

const Builtin* find_in(std::span<const Builtin> table, std::string_view name) {
	const auto at = std::find_if(table.begin(), table.end(), [&](const Builtin& b) { return b.name == name; });
	return at == table.end() ? nullptr : &*at;
}

} // namespace

const Builtin* find_filter(std::string_view name) {
	const Builtin* b = find_in(text_filters(), name);
	return b ? b : find_in(list_filters(), name);
}
const Builtin* find_test(std::string_view name) { return find_in(tests(), name); }
const Builtin* find_function(std::string_view name) { return find_in(functions(), name); }
const Builtin* find_method(Kind kind, std::string_view name) { return find_in(methods(kind), name); }

bool changes_its_object(Kind kind, std::string_view name) {
	const bool list = kind == Kind::List && (name == "clear" || name == "extend" || name == "insert" || name == "pop" ||
	                                         name == "remove" || name == "reverse" || name == "sort");
	const bool dict = kind == Kind::Dict && (name == "clear" || name == "fromkeys" || name == "pop" ||
	                                         name == "popitem" || name == "setdefault" || name == "update");
	return list || dict;
}

Value call_filter(Run& run, std::string_view name, const Value& self, const Args& args) {
	const Builtin* b = find_filter(name);
	if (!b) run.fail_unknown("unknown filter '{}'", name);
	run.spend();
	return b->call(run, self, args);
}

bool call_test(Run& run, std::string_view name, const Value& self, const Args& args) {
	const Builtin* b = find_test(name);
	if (!b) run.fail_unknown("unknown test '{}'", name);
	run.spend();
	return truth(b->call(run, self, args));
}

void bind(Run& run, const Args& args, std::span<const char* const> names, size_t required, const Value** out) {
	if (args.list.size() > names.size())
		run.fail("'{}' takes {} values at most, but is given {}", args.callee, names.size(), args.list.size());
	for (size_t i = 0; i < args.list.size(); ++i) out[i] = &args.list[i];
	for (const Named& n : args.named) {
		const auto at = std::find(names.begin(), names.end(), n.name.str());
		if (at == names.end()) run.fail("'{}' has no parameter '{}'", args.callee, n.name.str());
		const Value*& to = out[at - names.begin()];
		if (to) run.fail("'{}' is given '{}' twice", args.callee, n.name.str());
		to = &n.value;
	}
	for (size_t i = 0; i < required; ++i)
		if (!out[i]) run.fail("'{}' needs a value for '{}'", args.callee, names[i]);
}

void no_arguments(Run& run, const Args& args) { bind(run, args, {}, 0, nullptr); }

int64_t int_argument(Run& run, const Args& args, const Value* v, int64_t fallback) {
	if (!v) return fallback;
	if (!v->is_int()) run.fail("'{}' takes a whole number, not a {}", args.callee, type_name(*v));
	return v->as_int();
}

std::string_view text_argument(Run& run, const Args& args, const Value* v, std::string_view fallback) {
	if (!v) return fallback;
	if (!v->is(Kind::Text)) run.fail("'{}' takes a text, not a {}", args.callee, type_name(*v));
	return v->str();
}

} // namespace kvrun::jinja
