// Merges schemas that must all hold into one schema.
#include "models/grammar/schema_merge.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>

namespace kvrun::grammar {
namespace {

Json both(const Json& a, const Json& b) {
	if (a == b || b == Json(true)) return a;
	if (a == Json(true)) return b;
	return {{"allOf", Json::array({a, b})}};
}

Json type_list(const Json& t) { return t.is_array() ? t : Json::array({t}); }

Json common_types(const Json& a, const Json& b, const std::string& pointer) {
	Json out = Json::array();
	const Json x = type_list(a), y = type_list(b);
	const auto has = [](const Json& list, const char* t) { return std::ranges::count(list, Json(t)) > 0; };
	for (const Json& t : x)
		if (std::ranges::count(y, t) || (t == "integer" && has(y, "number")))
			out.push_back(t);
		else if (t == "number" && has(y, "integer"))
			out.push_back("integer");
	if (out.empty()) refuse_schema(pointer + "/type", "no value has both types " + a.dump() + " and " + b.dump());
	return out.size() == 1 ? out[0] : out;
}

const Json* find(const Json& s, const char* key) {
	const auto at = s.find(key);
	return at == s.end() ? nullptr : &*at;
}

// A property that only one side names must also satisfy the other side's additionalProperties.
void merge_objects(Json& out, const Json& a, const Json& b, const std::string& pointer) {
	const Json none = Json::object(), all = true;
	const Json *pa = find(a, "properties"), *pb = find(b, "properties");
	const Json *xa = find(a, "additionalProperties"), *xb = find(b, "additionalProperties");
	if (!pa && !pb && !xa && !xb) return;
	const Json *na = find(a, "patternProperties"), *nb = find(b, "patternProperties");
	const auto limits = [](const Json* x) { return x && *x != Json(true); };
	if ((na && limits(xb) && (!nb || *na != *nb)) || (nb && limits(xa) && (!na || *na != *nb)))
		refuse_schema(pointer + "/patternProperties",
		              "additionalProperties of another schema that holds here is not supported beside it");
	const Json &props_a = pa ? *pa : none, &props_b = pb ? *pb : none;
	Json props = Json::object();
	const auto add = [&](const Json& from, const Json& other, const Json* additional) {
		if (!from.is_object() || !other.is_object()) return;
		for (const auto& [name, schema] : from.items()) {
			if (props.contains(name)) continue;
			if (other.contains(name))
				props[name] = both(schema, other[name]);
			else if (!additional)
				props[name] = schema;
			else if (*additional == Json(false))
				props[name] = false;
			else
				props[name] = both(schema, *additional);
		}
	};
	add(props_a, props_b, xb);
	add(props_b, props_a, xa);
	if (pa || pb) out["properties"] = props;
	if (xa && xb)
		out["additionalProperties"] = *xa == Json(false) || *xb == Json(false) ? Json(false) : both(*xa, *xb);
	else if (xa || xb)
		out["additionalProperties"] = xa ? *xa : *xb;
}

void merge_arrays(Json& out, const Json& a, const Json& b) {
	const Json *pa = find(a, "prefixItems"), *pb = find(b, "prefixItems"), *ia = find(a, "items"),
	           *ib = find(b, "items");
	const Json none = Json::array(), all = true;
	const Json &prefix_a = pa && pa->is_array() ? *pa : none, &prefix_b = pb && pb->is_array() ? *pb : none;
	Json prefix = Json::array();
	for (size_t i = 0; i < std::max(prefix_a.size(), prefix_b.size()); ++i)
		prefix.push_back(both(i < prefix_a.size() ? prefix_a[i]
		                      : ia                ? *ia
		                                          : all,
		                      i < prefix_b.size() ? prefix_b[i]
		                      : ib                ? *ib
		                                          : all));
	if (!prefix.empty()) out["prefixItems"] = prefix;
	if (ia && ib)
		out["items"] = both(*ia, *ib);
	else if (ia || ib)
		out["items"] = ia ? *ia : *ib;
}

} // namespace

std::string schema_fault(const std::string& pointer, const std::string& what) {
	return "the JSON schema at #" + one_line(pointer, 200) + ": " + what;
}

void refuse_schema(const std::string& pointer, const std::string& what) {
	fail(Code::Unsupported, "{}", schema_fault(pointer, what));
}

bool is_annotation(const std::string& k) {
	constexpr const char* kNames[] = {
	    "$anchor",          "$comment",      "$defs",           "$id",      "$schema",      "$vocabulary",
	    "contentMediaType", "contentSchema", "contentEncoding", "default",  "definitions",  "deprecated",
	    "description",      "discriminator", "example",         "examples", "externalDocs", "readOnly",
	    "strict",           "title",         "writeOnly"};
	return k.starts_with("x-") || std::ranges::count(kNames, k) > 0;
}

Json merge_schemas(const Json& a, const Json& b, const std::string& pointer) {
	Json out = a;
	for (const auto& [key, value] : b.items()) {
		if (is_annotation(key) || !out.contains(key)) {
			out[key] = value;
			continue;
		}
		Json& mine = out[key];
		if (mine == value) continue;
		const bool numbers = mine.is_number() && value.is_number();
		if (key == "type")
			mine = common_types(mine, value, pointer);
		else if (key == "required" && mine.is_array() && value.is_array())
			for (const Json& name : value) {
				if (!std::ranges::count(mine, name)) mine.push_back(name);
			}
		else if ((key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
		          key == "minProperties") &&
		         numbers)
			mine = std::max(mine, value);
		else if ((key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
		          key == "maxProperties") &&
		         numbers)
			mine = std::min(mine, value);
		else if (key == "enum" && mine.is_array() && value.is_array()) {
			Json common = Json::array();
			for (const Json& v : mine)
				if (std::ranges::count(value, v)) common.push_back(v);
			if (common.empty()) refuse_schema(pointer + "/enum", "no value is in both lists that hold here");
			mine = common;
		} else if (key == "anyOf" || key == "oneOf" || key == "$ref" || key == "allOf") {
			Json& more = out["allOf"];
			if (!more.is_array()) more = Json::array();
			if (key == "allOf" && value.is_array())
				more.insert(more.end(), value.begin(), value.end());
			else
				more.push_back({{key, value}});
		} else if (key == "properties" || key == "additionalProperties" || key == "items" || key == "prefixItems") {
			// below
		} else {
			refuse_schema(pointer + "/" + key,
			              "two values of " + one_line(key, 40) + " hold here, which is not supported");
		}
	}
	merge_objects(out, a, b, pointer);
	merge_arrays(out, a, b);
	return out;
}

} // namespace kvrun::grammar
