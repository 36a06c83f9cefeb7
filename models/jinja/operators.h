// Operators on values, with Python's results and errors.
#pragma once
#include "models/jinja/run.h"

namespace kvrun::jinja {

const char* type_name(const Value&); // in Python: str, NoneType, ...
bool truth(const Value&);
size_t length(Run&, const Value&);

enum class Arithmetic : uint8_t { Add, Sub, Mul, Div, FloorDiv, Mod, Pow };
Value arithmetic(Run&, Arithmetic, const Value& a, const Value& b);
Value negative(Run&, const Value&);
Value positive(Run&, const Value&);

bool equal(Run&, const Value& a, const Value& b);
bool same(const Value& a, const Value& b); // Python's `is`
enum class Order : uint8_t { Less, LessEqual, Greater, GreaterEqual };
bool compare(Run&, Order, const Value& a, const Value& b);
inline bool less(Run& run, const Value& a, const Value& b) { return compare(run, Order::Less, a, b); }
bool contains(Run&, const Value& container, const Value& item);
void check_key(Run&, const Value&); // fails if a Dict cannot have this key

const Value* find(Run&, const Dict&, const Value& key);        // null: no such key
Value attribute(Run&, const Value& object, const Value& name); // object.name: methods come before keys
Value item(Run&, const Value& object, const Value& key);       // object[key]: keys come before methods
Value slice(Run&, const Value& object, const Value& start, const Value& stop, const Value& step);

// Iterates over the items of a value.
class Cursor {
 public:
	Cursor(Run& run, const Value& v); // fails if `v` is not iterable
	static bool can(const Value&);
	bool next(Value& out);

 private:
	Run& run_;
	Value v_;
	size_t at_ = 0;
};

} // namespace kvrun::jinja
