// Tests: the right side of `is`.
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/tables.h"
#include "models/jinja/lib/text.h"

namespace kvrun::jinja {
namespace {

// A test without arguments that depends on the value alone.
template <bool (*F)(const Value&)> Value simple(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return boolean(F(v));
}
const Value& other(Run& run, const Args& args) { return *bind(run, args, {"other"}, 1)[0]; }

Value remainder(Run& run, const Value& v, const Value& by) { return arithmetic(run, Arithmetic::Mod, v, by); }
Value test_odd(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return boolean(equal(run, remainder(run, v, integer(2)), integer(1)));
}
Value test_even(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return boolean(equal(run, remainder(run, v, integer(2)), integer(0)));
}
Value test_divisibleby(Run& run, const Value& v, const Args& args) {
	const auto [num] = bind(run, args, {"num"}, 1);
	return boolean(equal(run, remainder(run, v, *num), integer(0)));
}

Value test_equal(Run& run, const Value& v, const Args& args) { return boolean(equal(run, v, other(run, args))); }
Value test_not_equal(Run& run, const Value& v, const Args& args) { return boolean(!equal(run, v, other(run, args))); }
template <Order O> Value test_order(Run& run, const Value& v, const Args& args) {
	return boolean(compare(run, O, v, other(run, args)));
}
Value test_sameas(Run& run, const Value& v, const Args& args) {
	if (v.is(Kind::Text)) run.spend_bytes(v.size);
	return boolean(same(v, other(run, args)));
}
Value test_in(Run& run, const Value& v, const Args& args) {
	const auto [seq] = bind(run, args, {"seq"}, 1);
	return boolean(contains(run, *seq, v));
}
Value test_filter(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return boolean(v.is(Kind::Text) && find_filter(v.str()));
}
Value test_test(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return boolean(v.is(Kind::Text) && find_test(v.str()));
}

// There is at least one letter, and all letters have the same case.
template <bool (*Is)(char32_t), bool (*Other)(char32_t)> Value test_case(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	const Value t = to_text(run, v);
	run.spend_chars(t.size);
	bool some = false;
	for (size_t at = 0; at < t.size;) {
		const char32_t c = next_char(t.str(), at);
		if (Other(c)) return boolean(false);
		some |= Is(c);
	}
	return boolean(some);
}

bool is_defined(const Value& v) { return !v.is(Kind::Undefined); }
bool is_undefined(const Value& v) { return v.is(Kind::Undefined); }
bool is_none(const Value& v) { return v.is(Kind::None); }
bool is_boolean(const Value& v) { return v.is(Kind::Bool); }
bool is_true(const Value& v) { return v.is(Kind::Bool) && v.truth; }
bool is_false(const Value& v) { return v.is(Kind::Bool) && !v.truth; }
bool is_integer(const Value& v) { return v.is(Kind::Int); }
bool is_float(const Value& v) { return v.is(Kind::Float); }
bool is_a_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is(Kind::Text); }
bool is_mapping(const Value& v) { return v.is(Kind::Dict); }
bool is_escaped(const Value& v) { return v.is(Kind::Text) && v.markup; }
bool is_iterable(const Value& v) { return Cursor::can(v) || v.is(Kind::Loop); }
bool is_sequence(const Value& v) { // has a length and items by key
	return v.is(Kind::Text) || v.is(Kind::List) || v.is(Kind::Tuple) || v.is(Kind::Dict) || v.is(Kind::Range) ||
	       v.is(Kind::Undefined);
}
bool is_callable(const Value& v) {
	return v.is(Kind::Macro) || v.is(Kind::Function) || v.is(Kind::Method) || v.is(Kind::Joiner) ||
	       v.is(Kind::Undefined) || v.is(Kind::Loop);
}

constexpr Builtin kTests[] = {
    {"!=", test_not_equal},
    {"<", test_order<Order::Less>},
    {"<=", test_order<Order::LessEqual>},
    {"==", test_equal},
    {">", test_order<Order::Greater>},
    {">=", test_order<Order::GreaterEqual>},
    {"boolean", simple<is_boolean>},
    {"callable", simple<is_callable>},
    {"defined", simple<is_defined>},
    {"divisibleby", test_divisibleby},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"escaped", simple<is_escaped>},
    {"even", test_even},
    {"false", simple<is_false>},
    {"filter", test_filter},
    {"float", simple<is_float>},
    {"ge", test_order<Order::GreaterEqual>},
    {"greaterthan", test_order<Order::Greater>},
    {"gt", test_order<Order::Greater>},
    {"in", test_in},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_iterable>},
    {"le", test_order<Order::LessEqual>},
    {"lessthan", test_order<Order::Less>},
    {"lower", test_case<is_lower, is_upper>},
    {"lt", test_order<Order::Less>},
    {"mapping", simple<is_mapping>},
    {"ne", test_not_equal},
    {"none", simple<is_none>},
    {"number", simple<is_a_number>},
    {"odd", test_odd},
    {"sameas", test_sameas},
    {"sequence", simple<is_sequence>},
    {"string", simple<is_string>},
    {"test", test_test},
    {"true", simple<is_true>},
    {"undefined", simple<is_undefined>},
    {"upper", test_case<is_upper, is_lower>},
};

} // namespace

std::span<const Builtin> tests() { return kTests; }

} // namespace kvrun::jinja
