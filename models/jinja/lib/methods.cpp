// Methods of texts, lists, dicts and loops, as in Python. Of those that change a value a list has append() and pop()
// alone.
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/tables.h"
#include "models/jinja/lib/text.h"
#include "models/jinja/loop.h"
#include <algorithm>

namespace kvrun::jinja {
namespace {

const Value* unless_none(const Value* v) { return v && !v->is(Kind::None) ? v : nullptr; }

// A part of a text between two characters: the range of Python's find, count and startswith.
struct Window {
	std::string_view text;
	size_t first_char; // index of its first character in the whole text
	bool exists;       // false: it begins after the end of the text
};
Window window(Run& run, const Value& t, const Args& args, const Value* from, const Value* to) {
	run.spend();
	if (!unless_none(from) && !unless_none(to)) return {t.str(), 0, true};
	run.spend_search(t.size);
	const int64_t n = int64_t(char_count(t.str()));
	const auto place = [&](const Value* v, int64_t fallback) {
		int64_t i = int_argument(run, args, unless_none(v), fallback);
		if (i < 0) i = i < -n ? 0 : i + n;
		return i;
	};
	const int64_t start = place(from, 0), end = std::min(place(to, n), n);
	if (start > n || start > end) return {{}, 0, false};
	const size_t a = char_offset(t.str(), size_t(start));
	return {t.str().substr(a, char_offset(t.str().substr(a), size_t(end - start))), size_t(start), true};
}

// ---- texts

template <Value (*F)(Run&, const Value&)> Value plain(Run& run, const Value& t, const Args& args) {
	no_arguments(run, args);
	return F(run, t);
}

template <Side S> Value text_strip(Run& run, const Value& t, const Args& args) {
	const auto [chars] = bind(run, args, {"chars"});
	const Value* given = unless_none(chars);
	text_argument(run, args, given, "");
	return strip(run, t, S, given);
}

template <bool FromRight> Value text_split(Run& run, const Value& t, const Args& args) {
	const auto [sep, maxsplit] = bind(run, args, {"sep", "maxsplit"});
	const Value* given = unless_none(sep);
	text_argument(run, args, given, "");
	return run.make_list(split(run, t, given, int_argument(run, args, maxsplit, -1), FromRight));
}
Value text_splitlines(Run& run, const Value& t, const Args& args) {
	const auto [keepends] = bind(run, args, {"keepends"});
	return run.make_list(split_lines(run, t, flag_argument(keepends, false)));
}
template <bool FromRight> Value text_partition(Run& run, const Value& t, const Args& args) {
	const auto [sep] = bind(run, args, {"sep"}, 1);
	const std::string_view s = text_argument(run, args, sep, "");
	if (s.empty()) run.fail("partition: the separator is empty");
	run.spend_search(t.size);
	const size_t at = FromRight ? rfind_text(t.str(), s) : find_text(t.str(), s);
	if (at == t.str().npos)
		return FromRight ? run.make_list({text(""), text(""), t}, Kind::Tuple)
		                 : run.make_list({t, text(""), text("")}, Kind::Tuple);
	const size_t behind = at + s.size();
	return run.make_list({part(t, 0, at), part(t, at, s.size()), part(t, behind, t.size - behind)}, Kind::Tuple);
}

template <bool AtEnd> Value text_starts(Run& run, const Value& t, const Args& args) {
	const auto [what, from, to] = bind(run, args, {"prefix", "start", "end"}, 1);
	const Window w = window(run, t, args, from, to);
	const auto fits = [&](const Value& v) {
		const std::string_view s = text_argument(run, args, &v, "");
		run.spend_bytes(std::min(s.size(), w.text.size()));
		return w.exists && (AtEnd ? w.text.ends_with(s) : w.text.starts_with(s));
	};
	if (!what->is(Kind::Tuple)) return boolean(fits(*what));
	return boolean(std::any_of(what->items->at, what->items->at + what->items->n, fits));
}
template <bool AtEnd> Value text_remove(Run& run, const Value& t, const Args& args) {
	const auto [what] = bind(run, args, {"prefix"}, 1);
	const std::string_view s = text_argument(run, args, what, "");
	run.spend_bytes(s.size());
	if (AtEnd) return t.str().ends_with(s) ? part(t, 0, t.size - s.size()) : t;
	return t.str().starts_with(s) ? part(t, s.size(), t.size - s.size()) : t;
}

template <bool FromRight, bool MustBe> Value text_find(Run& run, const Value& t, const Args& args) {
	const auto [what, from, to] = bind(run, args, {"sub", "start", "end"}, 1);
	const std::string_view s = text_argument(run, args, what, "");
	const Window w = window(run, t, args, from, to);
	run.spend_search(w.text.size());
	const size_t at = !w.exists ? w.text.npos : FromRight ? rfind_text(w.text, s) : find_text(w.text, s);
	if (at == w.text.npos && MustBe) run.fail("'{}': the text is not in there", args.callee);
	return integer(at == w.text.npos ? -1 : int64_t(w.first_char + char_count(w.text.substr(0, at))), tainted(t));
}
Value text_count(Run& run, const Value& t, const Args& args) {
	const auto [what, from, to] = bind(run, args, {"sub", "start", "end"}, 1);
	const std::string_view s = text_argument(run, args, what, "");
	const Window w = window(run, t, args, from, to);
	int64_t n = 0;
	if (!w.exists) return integer(0);
	run.spend_search(w.text.size());
	if (s.empty()) return integer(int64_t(char_count(w.text)) + 1, tainted(t));
	for (size_t at = find_text(w.text, s); at != w.text.npos; at = find_text(w.text, s, at + s.size())) {
		run.spend();
		++n;
	}
	return integer(n, tainted(t));
}

Value text_replace(Run& run, const Value& t, const Args& args) {
	const auto [old, with, count] = bind(run, args, {"old", "new", "count"}, 2);
	text_argument(run, args, with, "");
	return replace(run, t, text_argument(run, args, old, ""), *with, int_argument(run, args, count, -1));
}
Value text_join(Run& run, const Value& t, const Args& args) {
	const auto [what] = bind(run, args, {"iterable"}, 1);
	TextBuilder out(run);
	Cursor items(run, *what);
	bool first = true;
	for (Value each; items.next(each); first = false) {
		if (!each.is(Kind::Text)) run.fail("join takes texts, one of them is a {}", type_name(each));
		if (!first) out.add(t);
		out.add(each);
	}
	return out.take();
}
template <Side S> Value text_pad(Run& run, const Value& t, const Args& args) {
	const auto [width, fill] = bind(run, args, {"width", "fillchar"}, 1);
	const Value with = fill ? *fill : text(" ");
	if (char_count(text_argument(run, args, &with, "")) != 1) run.fail("'{}' fills with one character", args.callee);
	return pad(run, t, int_argument(run, args, width, 0), S, with);
}
Value text_zfill(Run& run, const Value& t, const Args& args) {
	const auto [width] = bind(run, args, {"width"}, 1);
	const size_t sign = t.str().starts_with('-') || t.str().starts_with('+') ? 1 : 0;
	run.spend_bytes(t.size);
	const int64_t zeros = int_argument(run, args, width, 0) - int64_t(char_count(t.str()));
	TextBuilder out(run);
	out.add(part(t, 0, sign));
	out.add_times(text("0"), size_t(std::max<int64_t>(zeros, 0)));
	out.add(part(t, sign, t.size - sign));
	return out.take();
}
Value text_format(Run& run, const Value& t, const Args& args) { return format_braces(run, t, args); }

bool is_digit(char32_t c) { return is_decimal(c); }
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }
bool is_ascii(char32_t c) { return c < 0x80; }
// Whether all characters are of a kind. OfEmpty: result for the empty text, as in Python.
template <bool (*Is)(char32_t), bool OfEmpty> Value text_is(Run& run, const Value& t, const Args& args) {
	no_arguments(run, args);
	run.spend_chars(t.size);
	for (size_t at = 0; at < t.size;)
		if (!Is(next_char(t.str(), at))) return boolean(false);
	return boolean(t.size > 0 || OfEmpty);
}
template <bool Upper> Value text_is_case(Run& run, const Value& t, const Args& args) {
	no_arguments(run, args);
	return boolean(call_test(run, Upper ? "upper" : "lower", t, {Upper ? "isupper" : "islower", {}, {}}));
}

// ---- lists and tuples

Value list_index(Run& run, const Value& l, const Args& args) {
	const auto [what] = bind(run, args, {"value"}, 1);
	for (size_t i = 0; i < l.items->n; ++i)
		if (equal(run, l.items->at[i], *what)) return integer(int64_t(i));
	run.fail("index: the value is not in the list");
}
Value list_count(Run& run, const Value& l, const Args& args) {
	const auto [what] = bind(run, args, {"value"}, 1);
	int64_t n = 0;
	for (const Value& each : l.items->all()) n += equal(run, each, *what);
	return integer(n);
}
Value list_copy(Run& run, const Value& l, const Args& args) {
	no_arguments(run, args);
	return run.make_list(l.items->all());
}
// transformers refuses this and pop(); llama.cpp does not, and some of its templates (Kimi K2) need them.
Value list_append(Run& run, const Value& l, const Args& args) {
	const auto [what] = bind(run, args, {"object"}, 1);
	Items& items = const_cast<Items&>(*l.items); // it is of this rendering, as all lists are
	if (items.n >= items.room) {
		items.room = std::max<size_t>(4, 2 * items.n);
		Value* at = run.array<Value>(items.room);
		std::copy_n(items.at, items.n, at); // the old ones stay in memory: filters may go through them
		items.at = at;
	}
	const_cast<Value&>(items.at[items.n++]) = *what;
	return none();
}
Value list_pop(Run& run, const Value& l, const Args& args) {
	const auto [index] = bind(run, args, {"index"});
	Items& items = const_cast<Items&>(*l.items);
	int64_t i = int_argument(run, args, index, -1);
	if (i < 0) i += int64_t(items.n);
	if (i < 0 || i >= int64_t(items.n)) run.fail("pop: the list has no such item");
	run.spend(items.n - size_t(i));
	Value* at = const_cast<Value*>(items.at) + i;
	const Value out = *at;
	std::copy(at + 1, at + (items.n - size_t(i)), at);
	--items.n;
	return out;
}
Value same_value(Run& run, const Value& v, const Args& args) { // a copy: dicts are immutable
	no_arguments(run, args);
	return v;
}

// ---- dicts

Value dict_get(Run& run, const Value& d, const Args& args) {
	const auto [key, fallback] = bind(run, args, {"key", "default"}, 1);
	check_key(run, *key);
	const Value* v = find(run, *d.dict, *key);
	return v ? *v : fallback ? *fallback : none();
}
template <View::Part P> Value dict_view(Run& run, const Value& d, const Args& args) {
	no_arguments(run, args);
	Value v;
	v.kind = Kind::View;
	v.data = d.data;
	v.view = run.make(View{P, d.dict});
	return v;
}

// ---- loops and cyclers

Value call_cycle(Run& run, const Value& l, const Args& args) {
	if (!args.named.empty()) run.fail("loop.cycle takes no names");
	return loop_cycle(run, *l.loop, args.list);
}
Value call_changed(Run& run, const Value& l, const Args& args) {
	if (!args.named.empty()) run.fail("loop.changed takes no names");
	return loop_changed(run, *l.loop, args.list);
}
Value cycler_next(Run& run, const Value& c, const Args& args) {
	no_arguments(run, args);
	const Value v = c.cycler->items->at[c.cycler->pos];
	c.cycler->pos = (c.cycler->pos + 1) % c.cycler->items->n;
	return v;
}
Value cycler_reset(Run& run, const Value& c, const Args& args) {
	no_arguments(run, args);
	c.cycler->pos = 0;
	return none();
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", plain<capitalize>},
    {"center", text_pad<Side::Both>},
    {"count", text_count},
    {"endswith", text_starts<true>},
    {"find", text_find<false, false>},
    {"format", text_format},
    {"index", text_find<false, true>},
    {"isalnum", text_is<is_alnum, false>},
    {"isalpha", text_is<is_alpha, false>},
    {"isascii", text_is<is_ascii, true>},
    {"isdecimal", text_is<is_decimal, false>},
    {"isdigit", text_is<is_digit, false>},
    {"islower", text_is_case<false>},
    {"isnumeric", text_is<is_numeric, false>},
    {"isprintable", text_is<is_printable, true>},
    {"isspace", text_is<is_space, false>},
    {"isupper", text_is_case<true>},
    {"join", text_join},
    {"ljust", text_pad<Side::Left>},
    {"lower", plain<to_lower>},
    {"lstrip", text_strip<Side::Left>},
    {"partition", text_partition<false>},
    {"removeprefix", text_remove<false>},
    {"removesuffix", text_remove<true>},
    {"replace", text_replace},
    {"rfind", text_find<true, false>},
    {"rindex", text_find<true, true>},
    {"rjust", text_pad<Side::Right>},
    {"rpartition", text_partition<true>},
    {"rsplit", text_split<true>},
    {"rstrip", text_strip<Side::Right>},
    {"split", text_split<false>},
    {"splitlines", text_splitlines},
    {"startswith", text_starts<false>},
    {"strip", text_strip<Side::Both>},
    {"swapcase", plain<swap_case>},
    {"title", plain<title_letters>},
    {"upper", plain<to_upper>},
    {"zfill", text_zfill},
};
constexpr Builtin kListMethods[] = {
    {"append", list_append}, {"copy", list_copy}, {"count", list_count}, {"index", list_index}, {"pop", list_pop}};
constexpr Builtin kTupleMethods[] = {{"count", list_count}, {"index", list_index}};
constexpr Builtin kDictMethods[] = {{"copy", same_value},
                                    {"get", dict_get},
                                    {"items", dict_view<View::Pairs>},
                                    {"keys", dict_view<View::Keys>},
                                    {"values", dict_view<View::Values>}};
constexpr Builtin kLoopMethods[] = {{"changed", call_changed}, {"cycle", call_cycle}};
constexpr Builtin kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

} // namespace

std::span<const Builtin> methods(Kind kind) {
	switch (kind) {
	case Kind::Text: return kTextMethods;
	case Kind::List: return kListMethods;
	case Kind::Tuple: return kTupleMethods;
	case Kind::Dict: return kDictMethods;
	case Kind::Loop: return kLoopMethods;
	case Kind::Cycler: return kCyclerMethods;
	default: return {};
	}
}

} // namespace kvrun::jinja
