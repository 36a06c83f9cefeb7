// The variable `loop` of a for statement; it reads ahead only as far as needed.
#include "models/jinja/loop.h"
#include "models/jinja/operators.h"

namespace kvrun::jinja {
namespace {

bool read(Loop& l, Value& out) {
	if (l.rest) {
		if (l.rest_at >= l.rest->n) return false;
		out = l.rest->at[l.rest_at++];
		return true;
	}
	return l.items && l.items->next(out);
}

bool peek(Loop& l) {
	if (!l.has_after) l.has_after = read(l, l.after);
	return l.has_after;
}

int64_t loop_length(Run& run, Loop& l) {
	if (l.known >= 0) return l.known;
	std::vector<Value> rest;
	for (Value v; read(l, v);) rest.push_back(v);
	l.rest = run.make_list(rest).items;
	l.rest_at = 0;
	l.known = int64_t(rest.size()) + l.index0 + 1 + (l.has_after ? 1 : 0);
	return l.known;
}

} // namespace

bool loop_next(Run&, Loop& l, Value& out) {
	if (l.has_after) {
		out = l.after;
		l.has_after = false;
	} else if (!read(l, out)) {
		return false;
	}
	++l.index0;
	l.before = l.current;
	l.current = out;
	return true;
}

std::optional<Value> loop_attribute(Run& run, const Value& loop, std::string_view name) {
	Loop& l = *loop.loop;
	if (name == "index0") return integer(l.index0);
	if (name == "index") return integer(l.index0 + 1);
	if (name == "first") return boolean(l.index0 == 0);
	if (name == "last") return boolean(!peek(l));
	if (name == "length") return integer(loop_length(run, l));
	if (name == "revindex") return integer(loop_length(run, l) - l.index0);
	if (name == "revindex0") return integer(loop_length(run, l) - l.index0 - 1);
	if (name == "previtem") return l.index0 == 0 ? run.undefined_because("there is no previous item") : l.before;
	if (name == "nextitem") return peek(l) ? l.after : run.undefined_because("there is no next item");
	if (name == "depth") return integer(1); // recursive loops are not supported
	if (name == "depth0") return integer(0);
	return std::nullopt;
}

Value loop_cycle(Run& run, const Loop& l, std::span<const Value> values) {
	if (values.empty()) run.fail("loop.cycle takes one value or more");
	return values[size_t(l.index0) % values.size()];
}

Value loop_changed(Run& run, Loop& l, std::span<const Value> values) {
	const Value now = run.make_list(values, Kind::Tuple);
	if (l.has_changed && equal(run, l.last_changed, now)) return boolean(false);
	l.has_changed = true;
	l.last_changed = now;
	return boolean(true);
}

} // namespace kvrun::jinja
