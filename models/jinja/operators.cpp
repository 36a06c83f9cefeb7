// Operators on values: arithmetic, equality, order, membership.
#include "models/jinja/operators.h"
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <cmath>

namespace kvrun::jinja {

const char* type_name(const Value& v) {
	switch (v.kind) {
	case Kind::Undefined: return "Undefined";
	case Kind::None: return "NoneType";
	case Kind::Bool: return "bool";
	case Kind::Int: return "int";
	case Kind::Float: return "float";
	case Kind::Text: return "str";
	case Kind::List: return "list";
	case Kind::Tuple: return "tuple";
	case Kind::Dict: return "dict";
	case Kind::View: return "dict view";
	case Kind::Range: return "range";
	case Kind::Iterator: return "iterator";
	case Kind::Namespace: return "Namespace";
	case Kind::Macro: return "Macro";
	case Kind::Function: return "function";
	case Kind::Method: return "method";
	case Kind::Loop: return "LoopContext";
	case Kind::Cycler: return "Cycler";
	case Kind::Joiner: return "Joiner";
	}
	return "value";
}

bool truth(const Value& v) {
	switch (v.kind) {
	case Kind::Undefined:
	case Kind::None: return false;
	case Kind::Bool: return v.truth;
	case Kind::Int: return v.integer != 0;
	case Kind::Float: return v.number != 0;
	case Kind::Text: return v.size > 0;
	case Kind::List:
	case Kind::Tuple: return v.items->n > 0;
	case Kind::Dict: return v.dict->n > 0;
	case Kind::View: return v.view->dict->n > 0;
	case Kind::Range: return v.range->n > 0;
	default: return true;
	}
}

size_t length(Run& run, const Value& v) {
	switch (v.kind) {
	case Kind::Undefined: return 0;
	case Kind::Text: run.spend_bytes(v.size); return char_count(v.str());
	case Kind::List:
	case Kind::Tuple: return v.items->n;
	case Kind::Dict: return v.dict->n;
	case Kind::View: return v.view->dict->n;
	case Kind::Range: return size_t(v.range->n);
	default: run.fail("a {} has no length", type_name(v));
	}
}

// ---- arithmetic

namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void no_operator(Run& run, const char* sign, const Value& a, const Value& b) {
	if (a.is(Kind::Undefined)) run.fail_undefined(a);
	if (b.is(Kind::Undefined)) run.fail_undefined(b);
	run.fail("'{}' does not work on {} and {}", sign, type_name(a), type_name(b));
}

Value power(Run& run, int64_t base, int64_t exponent, bool data) {
	if (exponent < 0) {
		if (base == 0) run.fail("zero cannot be raised to a negative power");
		return number(std::pow(double(base), double(exponent)), data);
	}
	int64_t result = 1;
	if (base == 0 || base == 1 || base == -1)
		return integer(exponent == 0 || (base == -1 && exponent % 2 == 0) ? 1 : base, data);
	for (int64_t i = 0; i < exponent; ++i) // at most 63 times
		if (__builtin_mul_overflow(result, base, &result)) run.fail("{} ** {} has more than 64 bits", base, exponent);
	return integer(result, data);
}

Value int_arithmetic(Run& run, Arithmetic op, int64_t a, int64_t b, bool data) {
	int64_t out = 0;
	bool overflow = false;
	const bool divides = op == Arithmetic::Div || op == Arithmetic::FloorDiv || op == Arithmetic::Mod;
	if (divides && b == 0) run.fail("{} {} 0: division by zero", a, kSigns[size_t(op)]);
	switch (op) {
	case Arithmetic::Add: overflow = __builtin_add_overflow(a, b, &out); break;
	case Arithmetic::Sub: overflow = __builtin_sub_overflow(a, b, &out); break;
	case Arithmetic::Mul: overflow = __builtin_mul_overflow(a, b, &out); break;
	case Arithmetic::Div: return number(double((long double)(a) / (long double)(b)), data);
	case Arithmetic::FloorDiv:
		overflow = b == -1 && a == INT64_MIN;
		if (!overflow) out = a / b - (a % b != 0 && (a < 0) != (b < 0));
		break;
	case Arithmetic::Mod:
		out = b == -1 ? 0 : a % b;
		if (out != 0 && (out < 0) != (b < 0)) out += b;
		break;
	case Arithmetic::Pow: return power(run, a, b, data);
	}
	if (overflow) run.fail("{} {} {} has more than 64 bits", a, kSigns[size_t(op)], b);
	return integer(out, data);
}

// Remainder with the sign of b, and the matching floor: as CPython's float_divmod.
double floor_mod(double a, double b, double& floor) {
	double mod = std::fmod(a, b);
	double div = (a - mod) / b;
	if (mod != 0) {
		if ((b < 0) != (mod < 0)) {
			mod += b;
			div -= 1;
		}
	} else {
		mod = std::copysign(0.0, b);
	}
	floor = div != 0 ? std::floor(div) : std::copysign(0.0, a / b);
	if (div != 0 && div - floor > 0.5) floor += 1;
	return mod;
}

Value float_arithmetic(Run& run, Arithmetic op, double a, double b, bool data) {
	const bool divides = op == Arithmetic::Div || op == Arithmetic::FloorDiv || op == Arithmetic::Mod;
	if (divides && b == 0) run.fail("{} {} 0: division by zero", a, kSigns[size_t(op)]);
	double floor = 0;
	switch (op) {
	case Arithmetic::Add: return number(a + b, data);
	case Arithmetic::Sub: return number(a - b, data);
	case Arithmetic::Mul: return number(a * b, data);
	case Arithmetic::Div: return number(a / b, data);
	case Arithmetic::FloorDiv: floor_mod(a, b, floor); return number(floor, data);
	case Arithmetic::Mod: return number(floor_mod(a, b, floor), data);
	case Arithmetic::Pow: break;
	}
	if (a == 0 && b < 0) run.fail("zero cannot be raised to a negative power");
	const double out = std::pow(a, b);
	if (std::isinf(out) && !std::isinf(a) && !std::isinf(b)) run.fail("{} ** {} is too large", a, b);
	if (std::isnan(out) && !std::isnan(a) && !std::isnan(b)) run.fail("{} ** {} is no real number", a, b);
	return number(out, data);
}

Value join_texts(Run& run, const Value& a, const Value& b) {
	TextBuilder out(run);
	const bool markup = a.markup || b.markup;
	out.add(markup && !a.markup ? escape_html(run, a) : a);
	out.add(markup && !b.markup ? escape_html(run, b) : b);
	Value v = out.take();
	v.markup = markup;
	return v;
}

Value repeat(Run& run, const Value& v, int64_t times) {
	const size_t n = size_t(std::max<int64_t>(times, 0));
	if (v.is(Kind::Text)) {
		TextBuilder out(run);
		out.add_times(v, n);
		Value made = out.take();
		made.markup = v.markup;
		return made;
	}
	std::vector<Value> items;
	for (size_t i = 0; i < n && v.items->n > 0; ++i) {
		run.spend(1 + v.items->n / 8);
		items.insert(items.end(), v.items->at, v.items->at + v.items->n);
		if (items.size() * sizeof(Value) > run.bytes_left()) run.array<Value>(items.size()); // fails: out of memory
	}
	return run.make_list(items, v.kind);
}

bool repeats(const Value& v) { return v.is(Kind::Text) || v.is(Kind::List) || v.is(Kind::Tuple); }

} // namespace

Value arithmetic(Run& run, Arithmetic op, const Value& a, const Value& b) {
	const bool data = a.data || b.data;
	if (a.is_int() && b.is_int()) return int_arithmetic(run, op, a.as_int(), b.as_int(), data);
	if (a.is_number() && b.is_number()) return float_arithmetic(run, op, a.as_double(), b.as_double(), data);
	if (op == Arithmetic::Add) {
		if (a.is(Kind::Text) && b.is(Kind::Text)) return join_texts(run, a, b);
		if (a.kind == b.kind && (a.is(Kind::List) || a.is(Kind::Tuple))) {
			run.spend((a.items->n + b.items->n) / 8);
			std::vector<Value> items(a.items->at, a.items->at + a.items->n);
			items.insert(items.end(), b.items->at, b.items->at + b.items->n);
			return run.make_list(items, a.kind);
		}
	}
	if (op == Arithmetic::Mul && repeats(a) && b.is_int()) return repeat(run, a, b.as_int());
	if (op == Arithmetic::Mul && repeats(b) && a.is_int()) return repeat(run, b, a.as_int());
	if (op == Arithmetic::Mod && a.is(Kind::Text)) return format_percent(run, a, b);
	no_operator(run, kSigns[size_t(op)], a, b);
}

Value negative(Run& run, const Value& v) {
	if (v.is(Kind::Float)) return number(-v.number, v.data);
	if (v.is_int()) return int_arithmetic(run, Arithmetic::Sub, 0, v.as_int(), v.data);
	if (v.is(Kind::Undefined)) run.fail_undefined(v);
	run.fail("'-' does not work on {}", type_name(v));
}
Value positive(Run& run, const Value& v) {
	if (v.is(Kind::Float)) return v;
	if (v.is_int()) return integer(v.as_int(), v.data);
	if (v.is(Kind::Undefined)) run.fail_undefined(v);
	run.fail("'+' does not work on {}", type_name(v));
}

// ---- equality

namespace {

bool equal_numbers(const Value& a, const Value& b) {
	if (a.is_int() && b.is_int()) return a.as_int() == b.as_int();
	if (a.is(Kind::Float) && b.is(Kind::Float)) return a.number == b.number;
	const auto wide = [](const Value& v) {
		return v.is(Kind::Float) ? (long double)(v.number) : (long double)(v.as_int());
	};
	return wide(a) == wide(b); // a mantissa of 64 bits or more holds both
}

bool equal_items(Run& run, const Items& a, const Items& b) {
	if (a.n != b.n) return false;
	for (size_t i = 0; i < a.n; ++i)
		if (!equal(run, a.at[i], b.at[i])) return false;
	return true;
}

bool equal_dicts(Run& run, const Dict& a, const Dict& b) {
	if (a.n != b.n) return false;
	for (size_t i = 0; i < a.n; ++i) {
		const Value* other = find(run, b, a.keys[i]);
		if (!other || !equal(run, a.values[i], *other)) return false;
	}
	return true;
}

} // namespace

bool same(const Value& a, const Value& b) {
	if (a.kind != b.kind) return false;
	switch (a.kind) {
	case Kind::Undefined: return a.missing == b.missing;
	case Kind::None: return true;
	case Kind::Bool: return a.truth == b.truth;
	case Kind::Int: return a.integer == b.integer;
	case Kind::Float: return a.number == b.number;
	case Kind::Text: return a.str() == b.str();
	default: return a.items == b.items; // all other kinds are pointers
	}
}

bool equal(Run& run, const Value& a, const Value& b) {
	const Deeper deeper(run);
	run.spend();
	if (a.is_number() && b.is_number()) return equal_numbers(a, b);
	if (a.kind != b.kind) return false;
	switch (a.kind) {
	case Kind::Undefined: return true;
	case Kind::Text: run.spend(a.size == b.size ? a.size / 256 : 0); return a.str() == b.str();
	case Kind::List:
	case Kind::Tuple: return a.items == b.items || equal_items(run, *a.items, *b.items);
	case Kind::Dict: return a.dict == b.dict || equal_dicts(run, *a.dict, *b.dict);
	case Kind::Range:
		return a.range->n == b.range->n && (a.range->n == 0 || a.range->start == b.range->start) &&
		       (a.range->n < 2 || a.range->step == b.range->step);
	default: return same(a, b);
	}
}

// ---- order

namespace {

enum class Sign : int8_t { Less = -1, Equal = 0, Greater = 1, None = 2 }; // None: one is NaN

template <class T> Sign sign_of(const T& a, const T& b) {
	return a < b ? Sign::Less : a > b ? Sign::Greater : a == b ? Sign::Equal : Sign::None;
}

bool holds(Order o, Sign s) {
	switch (o) {
	case Order::Less: return s == Sign::Less;
	case Order::LessEqual: return s == Sign::Less || s == Sign::Equal;
	case Order::Greater: return s == Sign::Greater;
	case Order::GreaterEqual: return s == Sign::Greater || s == Sign::Equal;
	}
	return false;
}

} // namespace

bool compare(Run& run, Order o, const Value& a, const Value& b) {
	const Deeper deeper(run);
	run.spend();
	if (a.is_int() && b.is_int()) return holds(o, sign_of(a.as_int(), b.as_int()));
	if (a.is_number() && b.is_number()) {
		const auto wide = [](const Value& v) {
			return v.is(Kind::Float) ? (long double)(v.number) : (long double)(v.as_int());
		};
		return holds(o, sign_of(wide(a), wide(b)));
	}
	if (a.is(Kind::Text) && b.is(Kind::Text)) {   // bytes of UTF-8 have the order of characters
		run.spend(std::min(a.size, b.size) / 64); // compared up to three times
		return holds(o, sign_of(a.str(), b.str()));
	}
	if (a.kind == b.kind && (a.is(Kind::List) || a.is(Kind::Tuple))) {
		const size_t n = std::min(a.items->n, b.items->n);
		for (size_t i = 0; i < n; ++i)
			if (!equal(run, a.items->at[i], b.items->at[i])) return compare(run, o, a.items->at[i], b.items->at[i]);
		return holds(o, sign_of(a.items->n, b.items->n));
	}
	constexpr const char* kOrders[] = {"<", "<=", ">", ">="};
	no_operator(run, kOrders[size_t(o)], a, b);
}

bool contains(Run& run, const Value& container, const Value& v) {
	switch (container.kind) {
	case Kind::Text:
		if (!v.is(Kind::Text)) run.fail("'in' looks for a {} in a text", type_name(v));
		run.spend_search(container.size);
		return find_text(container.str(), v.str()) != std::string_view::npos;
	case Kind::Dict: check_key(run, v); return find(run, *container.dict, v) != nullptr;
	case Kind::Loop:
	case Kind::None: break;
	default:
		if (!Cursor::can(container)) break;
		Cursor items(run, container);
		for (Value each; items.next(each);)
			if (equal(run, each, v)) return true;
		return false;
	}
	run.fail("'in' looks into a {}; it must be a text, a list or a dict", type_name(container));
}

} // namespace kvrun::jinja
