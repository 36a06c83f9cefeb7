// Access to the parts of values: attributes, keys, slices and iteration.
#include "models/jinja/lib/builtins.h"
#include "models/jinja/lib/text.h"
#include "models/jinja/loop.h"
#include <algorithm>

namespace kvrun::jinja {

// ---- dicts

void check_key(Run& run, const Value& v) {
	run.spend();
	if (v.is(Kind::List) || v.is(Kind::Dict)) run.fail("a {} cannot be the key of a dict", type_name(v));
	if (!v.is(Kind::Tuple)) return;
	const Deeper deeper(run);
	for (const Value& each : v.items->all()) check_key(run, each);
}

namespace {

const Value* find_text_key(Run& run, const Dict& d, std::string_view key) {
	if (!d.by_text) {
		for (size_t i = 0; i < d.n; ++i) {
			const Value& k = d.keys[i];
			if (i % 8 == 0) run.spend();
			if (!k.is(Kind::Text) || k.size != key.size()) continue;
			run.spend(k.size / 256);
			if (k.str() == key) return &d.values[i];
		}
		return nullptr;
	}
	const uint32_t* end = d.by_text + d.n;
	const uint32_t* at = std::lower_bound(d.by_text, end, key, [&](uint32_t i, std::string_view k) {
		run.spend_bytes(std::min(size_t(d.keys[i].size), k.size()));
		return d.keys[i].str() < k;
	});
	return at != end && d.keys[*at].str() == key ? &d.values[*at] : nullptr;
}

} // namespace

const Value* find(Run& run, const Dict& d, const Value& key) {
	if (key.is(Kind::Text)) return find_text_key(run, d, key.str());
	if (d.by_text) return nullptr; // all keys are Text
	for (size_t i = 0; i < d.n; ++i)
		if (equal(run, d.keys[i], key)) return &d.values[i];
	return nullptr;
}

// ---- attributes and keys

namespace {

// The result of Python's getattr(); nullopt: no such attribute.
std::optional<Value> own_attribute(Run& run, const Value& object, std::string_view name) {
	if (object.is(Kind::Undefined)) run.fail_undefined(object);
	if (object.is(Kind::Namespace)) {
		for (const Namespace::Entry* e = object.space->first; e; e = e->next) {
			run.spend_bytes(e->name.size == name.size() ? name.size() : 0);
			if (e->name.str() == name) return e->value;
		}
		return std::nullopt;
	}
	if (object.is(Kind::Loop))
		if (std::optional<Value> v = loop_attribute(run, object, name)) return v;
	if (object.is(Kind::Cycler) && name == "current") return object.cycler->items->at[object.cycler->pos];
	if (object.is(Kind::Tuple) && object.items->group) {
		if (name == "grouper") return object.items->at[0];
		if (name == "list") return object.items->at[1];
	}
	if (const Builtin* b = find_method(object.kind, name)) {
		Value v;
		v.kind = Kind::Method;
		v.method = run.make(Method{object, b});
		return v;
	}
	if (changes_its_object(object.kind, name)) {
		Value v = run.undefined_because(
		    "lists have append() and pop() alone of what changes them; put a new value together with + or set");
		return v;
	}
	if (name.size() > 4 && name.starts_with("__") && name.ends_with("__"))
		return run.undefined_because("names with two underscores at both ends are refused");
	return std::nullopt;
}

// The result of Python's object[key].
std::optional<Value> own_item(Run& run, const Value& object, const Value& key) {
	switch (object.kind) {
	case Kind::Undefined: run.fail_undefined(object);
	case Kind::Dict: {
		if (key.is(Kind::List) || key.is(Kind::Dict)) return std::nullopt;
		const Value* v = find(run, *object.dict, key);
		return v ? std::optional(*v) : std::nullopt;
	}
	case Kind::Text:
	case Kind::List:
	case Kind::Tuple:
	case Kind::Range: break;
	default: return std::nullopt;
	}
	if (!key.is_int()) return std::nullopt;
	const int64_t n = int64_t(length(run, object));
	int64_t i = key.as_int();
	if (i < 0) i += n;
	if (i < 0 || i >= n) return std::nullopt;
	if (object.is(Kind::Range)) return integer(object.range->start + i * object.range->step, object.data);
	if (!object.is(Kind::Text)) return object.items->at[i];
	run.spend_search(size_t(i));
	const size_t from = char_offset(object.str(), size_t(i));
	return part(object, from, char_offset(object.str().substr(from), 1));
}

const char* owner_name(const Value& v) {
	switch (v.kind) {
	case Kind::Dict: return "dict object";
	case Kind::List: return "list object";
	case Kind::Text: return "str object";
	case Kind::Namespace: return "namespace object";
	default: return type_name(v);
	}
}

} // namespace

Value attribute(Run& run, const Value& object, const Value& name) {
	if (std::optional<Value> v = own_attribute(run, object, name.str())) return *v;
	if (std::optional<Value> v = own_item(run, object, name)) return *v;
	return run.undefined(name.str(), owner_name(object));
}

Value item(Run& run, const Value& object, const Value& key) {
	if (std::optional<Value> v = own_item(run, object, key)) return *v;
	if (!key.is(Kind::Text)) return run.undefined("(a number)", owner_name(object));
	if (std::optional<Value> v = own_attribute(run, object, key.str())) return *v;
	return run.undefined(key.str(), owner_name(object));
}

// ---- slices

namespace {

struct Bounds {
	int64_t start, stop, step, n; // n: number of items
};

// As CPython's PySlice_Unpack and PySlice_AdjustIndices.
Bounds bounds(Run& run, int64_t length, const Value& start, const Value& stop, const Value& step) {
	const auto number = [&](const Value& v, int64_t fallback) {
		if (v.is(Kind::None)) return fallback;
		if (v.is(Kind::Undefined)) run.fail_undefined(v);
		if (!v.is_int()) run.fail("a slice goes from number to number, not to a {}", type_name(v));
		return v.as_int();
	};
	Bounds b{};
	b.step = std::clamp(number(step, 1), -length - 1, length + 1); // longer steps also select one item only
	if (b.step == 0) run.fail("the step of a slice is 0");
	const bool back = b.step < 0;
	const auto clamp = [&](int64_t i) {
		if (i < 0) return std::max<int64_t>(i < -length ? -1 : i + length, back ? -1 : 0);
		return std::min<int64_t>(i, back ? length - 1 : length);
	};
	b.start = start.is(Kind::None) ? (back ? length - 1 : 0) : clamp(number(start, 0));
	b.stop = stop.is(Kind::None) ? (back ? -1 : length) : clamp(number(stop, 0));
	if (back)
		b.n = b.stop < b.start ? (b.start - b.stop - 1) / -b.step + 1 : 0;
	else
		b.n = b.start < b.stop ? (b.stop - b.start - 1) / b.step + 1 : 0;
	return b;
}

Value slice_text(Run& run, const Value& t, const Bounds& b) {
	const std::string_view s = t.str();
	if (b.n == 0) return part(t, 0, 0);
	if (b.step == 1) {
		run.spend_search(size_t(b.start + b.n));
		const size_t from = char_offset(s, size_t(b.start));
		return part(t, from, char_offset(s.substr(from), size_t(b.n)));
	}
	run.spend_chars(s.size());
	std::vector<uint32_t> starts; // of every character
	for (size_t at = 0; at < s.size(); at += char_offset(s.substr(at), 1)) starts.push_back(uint32_t(at));
	starts.push_back(uint32_t(s.size()));
	TextBuilder out(run);
	for (int64_t i = b.start, k = 0; k < b.n; ++k, i += b.step)
		out.add(part(t, starts[size_t(i)], starts[size_t(i) + 1] - starts[size_t(i)]));
	return out.take();
}

} // namespace

Value slice(Run& run, const Value& object, const Value& start, const Value& stop, const Value& step) {
	switch (object.kind) {
	case Kind::Undefined: run.fail_undefined(object);
	case Kind::Text:
	case Kind::List:
	case Kind::Tuple:
	case Kind::Range: break;
	default: run.fail("a {} has no slices", type_name(object));
	}
	const Bounds b = bounds(run, int64_t(length(run, object)), start, stop, step);
	if (object.is(Kind::Text)) {
		Value v = slice_text(run, object, b);
		v.markup = object.markup;
		return v;
	}
	if (object.is(Kind::Range)) {
		const Range& r = *object.range;
		Value v = object;
		v.range = run.make(Range{r.start + b.start * r.step, r.step * b.step, b.n, r.start + b.stop * r.step});
		return v;
	}
	run.spend(size_t(b.n) / 8);
	std::vector<Value> items;
	items.reserve(size_t(b.n));
	for (int64_t i = b.start, k = 0; k < b.n; ++k, i += b.step) items.push_back(object.items->at[i]);
	return run.make_list(items, object.kind);
}

// ---- Cursor

bool Cursor::can(const Value& v) {
	switch (v.kind) {
	case Kind::Undefined:
	case Kind::Text:
	case Kind::List:
	case Kind::Tuple:
	case Kind::Dict:
	case Kind::View:
	case Kind::Range:
	case Kind::Iterator: return true;
	default: return false;
	}
}

Cursor::Cursor(Run& run, const Value& v) : run_(run), v_(v) {
	if (!can(v)) run.fail("a {} has no items to go through", type_name(v));
}

bool Cursor::next(Value& out) {
	run_.spend();
	switch (v_.kind) {
	case Kind::Text: {
		if (at_ >= v_.size) return false;
		const size_t n = char_offset(v_.str().substr(at_), 1);
		out = part(v_, at_, n);
		at_ += n;
		return true;
	}
	case Kind::List:
	case Kind::Tuple:
		if (at_ >= v_.items->n) return false;
		out = v_.items->at[at_++];
		return true;
	case Kind::Dict:
		if (at_ >= v_.dict->n) return false;
		out = v_.dict->keys[at_++];
		return true;
	case Kind::View: {
		const Dict& d = *v_.view->dict;
		if (at_ >= d.n) return false;
		const size_t i = at_++;
		out = v_.view->part == View::Keys     ? d.keys[i]
		      : v_.view->part == View::Values ? d.values[i]
		                                      : run_.make_list({d.keys[i], d.values[i]}, Kind::Tuple);
		return true;
	}
	case Kind::Range:
		if (int64_t(at_) >= v_.range->n) return false;
		out = integer(v_.range->start + int64_t(at_++) * v_.range->step, v_.data);
		return true;
	case Kind::Iterator:
		if (v_.iterator->next >= v_.iterator->n) return false;
		out = v_.iterator->at[v_.iterator->next++];
		return true;
	default: return false;
	}
}

} // namespace kvrun::jinja
