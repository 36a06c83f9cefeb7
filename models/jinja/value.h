// Values of the template language: small and trivially copyable; their contents lie in the memory of one rendering.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace kvrun::jinja {

enum class Kind : uint8_t {
	Undefined,
	None,
	Bool,
	Int,
	Float,
	Text,
	List,
	Tuple,
	Dict,
	View, // keys(), values() or items() of a Dict
	Range,
	Iterator,  // result of map, select, reverse and others; can be read once
	Namespace, // its attributes can be set
	Macro,
	Function, // built-in: range, namespace, ...
	Method,   // a bound method of a value
	Loop,     // the variable `loop`
	Cycler,
	Joiner,
};

struct Items;
struct Dict;
struct View;
struct Range;
struct Iterator;
struct Namespace;
struct Macro;
struct Builtin;
struct Method;
struct Loop;
struct Cycler;
struct Joiner;
struct Missing;

struct Value {
	Kind kind = Kind::Undefined;
	bool data = false;   // at least partly derived from the conversation; false: the template's own text
	bool markup = false; // Text marked as HTML by the filters `escape` and `safe`
	uint32_t size = 0;   // Text: bytes
	union {
		bool truth;
		int64_t integer;
		double number;
		const char* text; // UTF-8
		const Items* items;
		const Dict* dict;
		const View* view;
		const Range* range;
		Iterator* iterator;
		Namespace* space;
		const Macro* macro;
		const Builtin* function;
		const Method* method;
		Loop* loop;
		Cycler* cycler;
		Joiner* joiner;
		const Missing* missing = nullptr; // Undefined: the reason; may be null
	};
	const uint8_t* marks = nullptr; // Text: (size) 1 where a byte is derived from the conversation; null: all as `data`

	bool is(Kind k) const { return kind == k; }
	bool is_int() const { return kind == Kind::Int || kind == Kind::Bool; } // a Bool counts as 0 or 1, as in Python
	bool is_number() const { return is_int() || kind == Kind::Float; }
	int64_t as_int() const { return kind == Kind::Bool ? int64_t(truth) : integer; }
	double as_double() const { return kind == Kind::Float ? number : double(as_int()); }
	std::string_view str() const { return {text, size}; }
};

inline Value none() {
	Value v;
	v.kind = Kind::None;
	return v;
}
inline Value boolean(bool b) {
	Value v;
	v.kind = Kind::Bool;
	v.truth = b;
	return v;
}
inline Value integer(int64_t i, bool data = false) {
	Value v;
	v.kind = Kind::Int;
	v.data = data;
	v.integer = i;
	return v;
}
inline Value number(double d, bool data = false) {
	Value v;
	v.kind = Kind::Float;
	v.data = data;
	v.number = d;
	return v;
}
// A Text for a string that outlives the rendering.
inline Value text(std::string_view s, bool data = false) {
	Value v;
	v.kind = Kind::Text;
	v.data = data;
	v.size = uint32_t(s.size());
	v.text = s.data();
	return v;
}
// Bytes [from, from + n) of a Text, without a copy.
inline Value part(const Value& t, size_t from, size_t n) {
	Value v = t;
	v.text += from;
	v.size = uint32_t(n);
	if (v.marks) v.marks += from;
	return v;
}
// Whether any byte of the Text is derived from the conversation.
inline bool tainted(const Value& t) { return t.marks ? std::memchr(t.marks, 1, t.size) != nullptr : t.data; }
inline bool mark_at(const Value& t, size_t i) { return t.marks ? t.marks[i] != 0 : t.data; }

struct Items { // of a List or Tuple
	const Value* at;
	size_t n;
	bool group = false; // a pair from the filter groupby, with attributes grouper and list
	size_t room = 0;    // values that append() has memory for; less than n before its first call
	std::span<const Value> all() const { return {at, n}; }
};
struct Dict {
	const Value* keys; // in insertion order
	const Value* values;
	size_t n;
	const uint32_t* by_text; // indices sorted by the keys' texts; null: few keys, or not all are Text
};
struct View {
	enum Part : uint8_t { Keys, Values, Pairs } part;
	const Dict* dict;
};
struct Range {
	int64_t start, step, n, stop;
};
struct Iterator {
	const Value* at;
	size_t n;
	size_t next; // items before this one have been read
};
struct Namespace {
	struct Entry {
		Value name, value;
		Entry* next;
	};
	Entry* first; // in the order of assignment
};
struct Cycler {
	const Items* items;
	size_t pos;
};
struct Joiner {
	Value separator;
	bool used;
};
struct Missing {
	std::string_view name;
	const char* owner; // type of the value that lacks the attribute; null: a variable
	const char* why;   // the complete reason; null: derived from name and owner
};

} // namespace kvrun::jinja
