// Filters on lists, dicts and other values with items.
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/tables.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <bit>
#include <set>

namespace kvrun::jinja {
namespace {

std::vector<Value> items_of(Run& run, const Value& v) {
	std::vector<Value> out;
	Cursor items(run, v);
	for (Value each; items.next(each);) out.push_back(each);
	return out;
}

// ---- attributes by path: "function.name", "0.text", or a number

class Path {
 public:
	Path() = default; // the item itself
	Path(Run& run, const Value& v) {
		if (v.is(Kind::None)) return;
		if (!v.is(Kind::Text)) {
			parts_.push_back(v);
			return;
		}
		for (const Value& name : split(run, v, &kDot, -1, false)) {
			const std::string_view s = name.str();
			const bool number = !s.empty() && s.size() < 18 && s.find_first_not_of("0123456789") == s.npos;
			parts_.push_back(number ? integer(std::stoll(std::string(s))) : name);
		}
	}
	Value of(Run& run, Value v, const Value* fallback = nullptr) const {
		for (const Value& name : parts_) {
			v = item(run, v, name);
			if (fallback && v.is(Kind::Undefined)) v = *fallback;
		}
		return v;
	}

 private:
	static inline const Value kDot = text(".");
	std::vector<Value> parts_;
};

// The key by which sort, unique, min, max and groupby compare: texts are compared without case unless requested.
struct KeyOf {
	Path path;
	bool case_sensitive = false;
	Value of(Run& run, const Value& v, const Value* fallback = nullptr) const {
		const Value key = path.of(run, v, fallback);
		return !case_sensitive && key.is(Kind::Text) ? to_lower(run, key) : key;
	}
};

// A path from an optional parameter.
Path path_argument(Run& run, const Value* v) { return v ? Path(run, *v) : Path(); }

struct Keyed {
	Value key, item;
};
void sort_keyed(Run& run, std::vector<Keyed>& list, bool reverse) {
	std::stable_sort(list.begin(), list.end(), [&](const Keyed& a, const Keyed& b) {
		return reverse ? less(run, b.key, a.key) : less(run, a.key, b.key);
	});
}

// ---- filters

Value filter_length(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return integer(int64_t(length(run, v)), v.is(Kind::Text) ? tainted(v) : v.data);
}
Value filter_list(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return run.make_list(items_of(run, v));
}
Value filter_first(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	Cursor items(run, v);
	Value out;
	return items.next(out) ? out : run.undefined_because("there is no first item, the sequence is empty");
}
Value filter_last(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	if (v.is(Kind::Iterator)) run.fail("last needs a list; write |list|last");
	const std::vector<Value> all = items_of(run, v);
	return all.empty() ? run.undefined_because("there is no last item, the sequence is empty") : all.back();
}
Value filter_reverse(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	if (v.is(Kind::Text)) return slice(run, v, none(), none(), integer(-1));
	std::vector<Value> all = items_of(run, v);
	std::reverse(all.begin(), all.end());
	return v.is(Kind::Iterator) || v.is(Kind::Undefined) ? run.make_list(all) : run.make_iterator(all);
}

Value filter_default(Run& run, const Value& v, const Args& args) {
	const auto [fallback, also_false] = bind(run, args, {"default_value", "boolean"});
	const bool missing = v.is(Kind::Undefined) || (flag_argument(also_false, false) && !truth(v));
	return !missing ? v : fallback ? *fallback : text("");
}

Value filter_join(Run& run, const Value& v, const Args& args) {
	const auto [d, attr] = bind(run, args, {"d", "attribute"});
	const Value between = d ? to_text(run, *d) : text("");
	const Path path = path_argument(run, attr);
	TextBuilder out(run);
	Cursor items(run, v);
	bool first = true;
	for (Value each; items.next(each); first = false) {
		if (!first) out.add(between);
		out.add(to_text(run, path.of(run, each)));
	}
	return out.take();
}

Value filter_items(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	if (v.is(Kind::Undefined)) return run.make_iterator({});
	if (!v.is(Kind::Dict)) run.fail("items takes a dict, not a {}", type_name(v));
	std::vector<Value> pairs;
	for (size_t i = 0; i < v.dict->n; ++i) {
		run.spend();
		pairs.push_back(run.make_list({v.dict->keys[i], v.dict->values[i]}, Kind::Tuple));
	}
	return run.make_iterator(pairs);
}

Value filter_dictsort(Run& run, const Value& v, const Args& args) {
	const auto [case_sensitive, by, reverse] = bind(run, args, {"case_sensitive", "by", "reverse"});
	const std::string_view what = text_argument(run, args, by, "key");
	if (what != "key" && what != "value") run.fail("dictsort sorts by \"key\" or \"value\"");
	if (!v.is(Kind::Dict)) run.fail("dictsort takes a dict, not a {}", type_name(v));
	const KeyOf key_of{{}, flag_argument(case_sensitive, false)};
	std::vector<Keyed> list;
	for (size_t i = 0; i < v.dict->n; ++i) {
		run.spend();
		const Value &k = v.dict->keys[i], &value = v.dict->values[i];
		list.push_back({key_of.of(run, what == "key" ? k : value), run.make_list({k, value}, Kind::Tuple)});
	}
	sort_keyed(run, list, flag_argument(reverse, false));
	std::vector<Value> out;
	for (const Keyed& k : list) out.push_back(k.item);
	return run.make_list(out);
}

Value filter_sort(Run& run, const Value& v, const Args& args) {
	const auto [reverse, case_sensitive, attr] = bind(run, args, {"reverse", "case_sensitive", "attribute"});
	std::vector<KeyOf> keys; // attributes separated by commas are compared in order
	const bool by_case = flag_argument(case_sensitive, false);
	if (attr && attr->is(Kind::Text)) {
		const Value comma = text(",");
		for (const Value& path : split(run, *attr, &comma, -1, false)) keys.push_back({Path(run, path), by_case});
	} else {
		keys.push_back({path_argument(run, attr), by_case});
	}
	std::vector<Keyed> list;
	for (const Value& each : items_of(run, v)) {
		std::vector<Value> parts;
		for (const KeyOf& key : keys) parts.push_back(key.of(run, each));
		list.push_back({run.make_list(parts), each});
	}
	sort_keyed(run, list, flag_argument(reverse, false));
	std::vector<Value> out;
	for (const Keyed& k : list) out.push_back(k.item);
	return run.make_list(out);
}

Value filter_unique(Run& run, const Value& v, const Args& args) {
	const auto [case_sensitive, attr] = bind(run, args, {"case_sensitive", "attribute"});
	const KeyOf key_of{path_argument(run, attr), flag_argument(case_sensitive, false)};
	std::set<std::string_view> texts;
	std::vector<Value> others, out;
	for (const Value& each : items_of(run, v)) {
		const Value key = key_of.of(run, each);
		check_key(run, key);
		if (key.is(Kind::Text)) {
			run.spend((1 + key.size / 256) * (1 + std::bit_width(texts.size()))); // number of comparisons
			if (texts.insert(key.str()).second) out.push_back(each);
			continue;
		}
		if (std::any_of(others.begin(), others.end(), [&](const Value& o) { return equal(run, o, key); })) continue;
		others.push_back(key);
		out.push_back(each);
	}
	return run.make_iterator(out);
}

Value extreme(Run& run, const Value& v, const Args& args, Order wanted) {
	const auto [case_sensitive, attr] = bind(run, args, {"case_sensitive", "attribute"});
	const KeyOf key_of{path_argument(run, attr), flag_argument(case_sensitive, false)};
	std::optional<Keyed> best;
	for (const Value& each : items_of(run, v)) {
		const Value key = key_of.of(run, each);
		if (!best || compare(run, wanted, key, best->key)) best = {key, each};
	}
	return best ? best->item : run.undefined_because("the sequence is empty");
}
Value filter_min(Run& run, const Value& v, const Args& args) { return extreme(run, v, args, Order::Less); }
Value filter_max(Run& run, const Value& v, const Args& args) { return extreme(run, v, args, Order::Greater); }

Value filter_sum(Run& run, const Value& v, const Args& args) {
	const auto [attr, start] = bind(run, args, {"attribute", "start"});
	const Path path = path_argument(run, attr);
	Value total = start ? *start : integer(0);
	if (total.is(Kind::Text)) run.fail("sum does not join texts; use join");
	for (const Value& each : items_of(run, v)) total = arithmetic(run, Arithmetic::Add, total, path.of(run, each));
	return total;
}

Value filter_batch(Run& run, const Value& v, const Args& args) {
	const auto [count, fill] = bind(run, args, {"linecount", "fill_with"}, 1);
	const int64_t n = int_argument(run, args, count, 0);
	std::vector<Value> out, line;
	for (const Value& each : items_of(run, v)) {
		if (int64_t(line.size()) == n) {
			out.push_back(run.make_list(line));
			line.clear();
		}
		line.push_back(each);
	}
	if (!line.empty()) {
		if (fill && !fill->is(Kind::None))
			for (; int64_t(line.size()) < n; line.push_back(*fill)) run.spend();
		out.push_back(run.make_list(line));
	}
	return run.make_iterator(out);
}

Value filter_slice(Run& run, const Value& v, const Args& args) {
	const auto [count, fill] = bind(run, args, {"slices", "fill_with"}, 1);
	const int64_t slices = int_argument(run, args, count, 0);
	const std::vector<Value> all = items_of(run, v);
	if (slices == 0) run.fail("slice: into 0 parts");
	std::vector<Value> out;
	size_t at = 0;
	for (int64_t i = 0; i < slices; ++i) {
		run.spend();
		const bool longer = i < int64_t(all.size()) % slices;
		const size_t n = all.size() / size_t(slices) + (longer ? 1 : 0);
		std::vector<Value> piece(all.begin() + std::ptrdiff_t(at), all.begin() + std::ptrdiff_t(at + n));
		if (fill && !fill->is(Kind::None) && !longer) piece.push_back(*fill);
		out.push_back(run.make_list(piece));
		at += n;
	}
	return run.make_iterator(out);
}

Value filter_groupby(Run& run, const Value& v, const Args& args) {
	const auto [attr, fallback, case_sensitive] = bind(run, args, {"attribute", "default", "case_sensitive"}, 1);
	const Value* otherwise = fallback && !fallback->is(Kind::None) ? fallback : nullptr;
	const KeyOf key_of{Path(run, *attr), flag_argument(case_sensitive, false)};
	std::vector<Keyed> list;
	for (const Value& each : items_of(run, v)) list.push_back({key_of.of(run, each, otherwise), each});
	sort_keyed(run, list, false);
	std::vector<Value> out;
	for (size_t i = 0; i < list.size();) {
		std::vector<Value> group;
		const size_t first = i;
		for (; i < list.size() && equal(run, list[first].key, list[i].key); ++i) group.push_back(list[i].item);
		if (group.empty()) group.push_back(list[i++].item); // the key does not equal itself (NaN)
		Value* pair = run.array<Value>(2);
		pair[0] = key_of.path.of(run, group[0], otherwise);
		pair[1] = run.make_list(group);
		Value tuple;
		tuple.kind = Kind::Tuple;
		tuple.items = run.make(Items{pair, 2, /*group=*/true});
		out.push_back(tuple);
	}
	return run.make_list(out);
}

Value filter_attr(Run& run, const Value& v, const Args& args) {
	const auto [name] = bind(run, args, {"name"}, 1);
	const std::string_view attr = text_argument(run, args, name, "");
	return v.is(Kind::Dict) && !find_method(v.kind, attr) ? run.undefined(attr, "dict object")
	                                                      : attribute(run, v, *name);
}

// ---- map, select, reject and others: apply another filter or test to every item

Args rest_of(const Args& args, size_t skip) {
	Args out;
	out.named = args.named;
	out.list.assign(args.list.begin() + std::ptrdiff_t(skip), args.list.end());
	return out;
}

Value filter_map(Run& run, const Value& v, const Args& args) {
	std::vector<Value> out;
	if (!truth(v)) return run.make_iterator({});
	const auto is_attribute = [](const Named& n) { return n.name.str() == "attribute"; };
	if (args.list.empty() && std::any_of(args.named.begin(), args.named.end(), is_attribute)) {
		const auto [attr, fallback] = bind(run, args, {"attribute", "default"});
		const Value* otherwise = fallback && !fallback->is(Kind::None) ? fallback : nullptr;
		const Path path(run, *attr);
		for (const Value& each : items_of(run, v)) out.push_back(path.of(run, each, otherwise));
		return run.make_iterator(out);
	}
	if (args.list.empty()) run.fail("map needs the name of a filter, or attribute=");
	const std::string_view name = text_argument(run, args, &args.list[0], "");
	Args inner = rest_of(args, 1);
	inner.callee = name;
	for (const Value& each : items_of(run, v)) out.push_back(call_filter(run, name, each, inner));
	return run.make_iterator(out);
}

Value choose(Run& run, const Value& v, const Args& args, bool wanted, bool by_attribute) {
	std::vector<Value> out;
	if (!truth(v)) return run.make_iterator({});
	Path path;
	const size_t at = by_attribute ? 1 : 0;
	if (by_attribute) {
		if (args.list.empty()) run.fail("'{}' needs the name of an attribute", args.callee);
		path = Path(run, args.list[0]);
	}
	const bool tests = args.list.size() > at;
	const std::string_view name = tests ? text_argument(run, args, &args.list[at], "") : "";
	Args inner = tests ? rest_of(args, at + 1) : Args{};
	inner.callee = name;
	for (const Value& each : items_of(run, v)) {
		const Value tested = path.of(run, each);
		if ((tests ? call_test(run, name, tested, inner) : truth(tested)) == wanted) out.push_back(each);
	}
	return run.make_iterator(out);
}
Value filter_select(Run& run, const Value& v, const Args& args) { return choose(run, v, args, true, false); }
Value filter_reject(Run& run, const Value& v, const Args& args) { return choose(run, v, args, false, false); }
Value filter_selectattr(Run& run, const Value& v, const Args& args) { return choose(run, v, args, true, true); }
Value filter_rejectattr(Run& run, const Value& v, const Args& args) { return choose(run, v, args, false, true); }

constexpr Builtin kListFilters[] = {
    {"attr", filter_attr},       {"batch", filter_batch},     {"count", filter_length},
    {"d", filter_default},       {"default", filter_default}, {"dictsort", filter_dictsort},
    {"first", filter_first},     {"groupby", filter_groupby}, {"items", filter_items},
    {"join", filter_join},       {"last", filter_last},       {"length", filter_length},
    {"list", filter_list},       {"map", filter_map},         {"max", filter_max},
    {"min", filter_min},         {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse}, {"select", filter_select},   {"selectattr", filter_selectattr},
    {"slice", filter_slice},     {"sort", filter_sort},       {"sum", filter_sum},
    {"unique", filter_unique},
};

} // namespace

std::span<const Builtin> list_filters() { return kListFilters; }

} // namespace kvrun::jinja
