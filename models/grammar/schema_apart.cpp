// oneOf: checks that no value fits two of its schemas.
#include "models/grammar/schema_apart.h"
#include "models/grammar/schema_keywords.h"
#include <algorithm>
#include <vector>

namespace kvrun::grammar {
namespace {

std::vector<std::string> types_of(const Json& s) {
	std::vector<std::string> out;
	if (!s.is_object()) return {std::begin(kTypes), std::end(kTypes)};
	if (const Json* t = find(s, "type")) {
		for (const Json& one : t->is_array() ? *t : Json::array({*t}))
			if (one.is_string()) out.push_back(one.get<std::string>());
	} else if (s.contains("const") || s.contains("enum")) {
		for (const Json& v : constants(s)) out.push_back(type_of(v));
	} else {
		for (const auto& [key, type] : kTypeOf)
			if (s.contains(key)) out.push_back(type);
	}
	if (out.empty()) return {std::begin(kTypes), std::end(kTypes)};
	if (std::ranges::count(out, "integer")) out.push_back("number");
	return out;
}

bool no_common(const Json& a, const Json& b) {
	return a.is_array() && b.is_array() &&
	       std::ranges::none_of(a, [&](const Json& v) { return std::ranges::count(b, v) > 0; });
}

bool are_apart(const Json& a, const Json& b, const Resolve& resolved) {
	const auto types = types_of(b);
	if (std::ranges::none_of(types_of(a), [&](const auto& t) { return std::ranges::count(types, t) > 0; })) return true;
	if (no_common(constants(a), constants(b))) return true;
	if (!a.is_object() || !b.is_object() || types_of(a) != std::vector<std::string>{"object"} || types != types_of(a))
		return false;
	const Json *pa = find(a, "properties"), *pb = find(b, "properties");
	if (!pa || !pb || !pa->is_object() || !pb->is_object()) return false;
	const auto required = [&](const Json& s, const std::string& name) {
		const Json* r = find(s, "required");
		return r && r->is_array() && std::ranges::count(*r, Json(name)) > 0;
	};
	for (const auto& [name, sub] : pa->items()) // a common property with different constants
		if (pb->contains(name) && required(a, name) && required(b, name) &&
		    no_common(constants(resolved(sub)), constants(resolved((*pb)[name]))))
			return true;
	const auto excludes = [&](const Json& s, const Json& other) { // one requires what the other forbids
		const Json* x = find(other, "additionalProperties");
		const Json *p = find(other, "properties"), *r = find(s, "required");
		return x && *x == Json(false) && !other.contains("patternProperties") && r && r->is_array() &&
		       std::ranges::any_of(*r,
		                           [&](const Json& n) { return n.is_string() && !p->contains(n.get<std::string>()); });
	};
	return excludes(a, b) || excludes(b, a);
}

} // namespace

void check_apart(const Json& list, const std::string& at, const Resolve& resolved) {
	if (list.size() > 200) refuse_schema(at, "oneOf has more than 200 schemas");
	for (size_t i = 0; i < list.size(); ++i)
		for (size_t j = i + 1; j < list.size(); ++j)
			if (!are_apart(resolved(list[i]), resolved(list[j]), resolved))
				refuse_schema(
				    at, "schemas " + std::to_string(i) + " and " + std::to_string(j) +
				            " of oneOf are not told apart by a type or a constant, which is not supported; anyOf is");
}

} // namespace kvrun::grammar
