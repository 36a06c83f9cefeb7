// Keywords of JSON schemas, and what they say of values.
#pragma once
#include "models/grammar/schema_merge.h"
#include <string>
#include <utility>

namespace kvrun::grammar {

inline constexpr const char* kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

// Keywords that ask for one type where they stand without "type".
inline constexpr std::pair<const char*, const char*> kTypeOf[] = {
    {"properties", "object"},       {"required", "object"},         {"additionalProperties", "object"},
    {"minProperties", "object"},    {"maxProperties", "object"},    {"items", "array"},
    {"prefixItems", "array"},       {"minItems", "array"},          {"maxItems", "array"},
    {"minLength", "string"},        {"maxLength", "string"},        {"pattern", "string"},
    {"format", "string"},           {"minimum", "number"},          {"maximum", "number"},
    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}, {"uniqueItems", "array"},
};

inline const Json* find(const Json& s, const char* key) {
	const auto at = s.find(key);
	return at == s.end() ? nullptr : &*at;
}

inline std::string type_of(const Json& v) {
	return v.is_object()    ? "object"
	       : v.is_array()   ? "array"
	       : v.is_string()  ? "string"
	       : v.is_number()  ? "number"
	       : v.is_boolean() ? "boolean"
	                        : "null";
}

// The values that a schema names one by one.
inline Json constants(const Json& s) { // null: it is none of these
	if (!s.is_object()) return nullptr;
	if (const Json* c = find(s, "const")) return Json::array({*c});
	if (const Json* e = find(s, "enum"); e && e->is_array()) return *e;
	return nullptr;
}

} // namespace kvrun::grammar
