// The variable `loop` of a for statement.
#pragma once
#include "models/jinja/run.h"

namespace kvrun::jinja {

// Source of the items of a for statement.
class LoopItems {
 public:
	virtual bool next(Value& out) = 0;

 protected:
	~LoopItems() = default;
};

struct Loop {
	LoopItems* items;  // null once the statement has ended
	int64_t index0;    // -1 before the first item
	int64_t known;     // length, or -1
	const Items* rest; // items read ahead to know the length; null: none
	size_t rest_at;    // index of the next one
	bool has_after;    // `after` is the item after the current one
	bool has_changed;  // changed() has been called with `last_changed`
	Value before, current, after;
	Value last_changed; // Tuple
};

bool loop_next(Run&, Loop&, Value& out); // goes to the next item
std::optional<Value> loop_attribute(Run&, const Value& loop, std::string_view name);
Value loop_cycle(Run&, const Loop&, std::span<const Value> values);
Value loop_changed(Run&, Loop&, std::span<const Value> values);

} // namespace kvrun::jinja
