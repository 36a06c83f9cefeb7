// Keywords of JSON schemas, and what they say about values.
#pragma once
#include "models/grammar/schema_merge.h"
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

namespace kvrun::grammar {

inline constexpr const char* kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

// Keywords that imply a type if "type" is missing.
inline constexpr std::pair<const char*, const char*> kTypeOf[] = {
    {"patternProperties", "object"},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"uniqueItems", "array"},
};

// Keywords that limit the values further and that grammars never enforce: without them a grammar has more texts, but
// none that is of another kind.
inline constexpr const char* kNotEnforced[] = {"contains",
                                               "dependencies",
                                               "dependentRequired",
                                               "dependentSchemas",
                                               "else",
                                               "if",
                                               "maxContains",
                                               "minContains",
                                               "multipleOf",
                                               "not",
                                               "propertyNames",
                                               "then",
                                               "unevaluatedItems",
                                               "unevaluatedProperties",
                                               "uniqueItems"};

// Keywords that stand for another schema, or change what others mean: without them a grammar would have other texts.
inline constexpr const char* kOtherMeaning[] = {"$dynamicRef", "$recursiveRef", "additionalItems"};

inline const Json* find(const Json& s, const char* key) {
	const auto at = s.find(key);
	return at == s.end() ? nullptr : &*at;
}

inline std::string escaped_key(std::string key) { // for a JSON pointer
	for (size_t at = 0; (at = key.find_first_of("~/", at)) != key.npos; at += 2)
		key.replace(at, 1, key[at] == '~' ? "~0" : "~1");
	return key;
}

inline std::string decoded_key(const std::string& s) { // ~1, ~0 and %2F
	std::string out;
	for (size_t i = 0; i < s.size(); ++i) {
		if (s[i] == '~' && i + 1 < s.size() && (s[i + 1] == '0' || s[i + 1] == '1'))
			out += s[++i] == '0' ? '~' : '/';
		else if (int c = 0;
		         s[i] == '%' && i + 2 < s.size() && std::from_chars(&s[i + 1], &s[i + 3], c, 16).ptr == &s[i + 3])
			out += char(c), i += 2;
		else
			out += s[i];
	}
	return out;
}

// The part of a document that a JSON pointer (#/...) names; null: there is none.
inline const Json* find_part(const Json& document, const std::string& pointer) {
	const Json* found = &document;
	for (size_t from = 2; from <= pointer.size();) {
		const size_t to = std::min(pointer.find('/', from), pointer.size());
		const std::string key = decoded_key(pointer.substr(from, to - from));
		from = to + 1;
		const bool number = !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == key.npos;
		if (found->is_object() && found->contains(key))
			found = &(*found)[key];
		else if (found->is_array() && number && std::stoul(key) < found->size())
			found = &(*found)[std::stoul(key)];
		else
			return nullptr;
	}
	return found;
}

inline std::string type_of(const Json& v) {
	return v.is_object()    ? "object"
	       : v.is_array()   ? "array"
	       : v.is_string()  ? "string"
	       : v.is_number()  ? "number"
	       : v.is_boolean() ? "boolean"
	                        : "null";
}

// The values that a schema lists.
inline Json constants(const Json& s) { // null: neither const nor enum
	if (!s.is_object()) return nullptr;
	if (const Json* c = find(s, "const")) return Json::array({*c});
	if (const Json* e = find(s, "enum"); e && e->is_array()) return *e;
	if (const Json* all = find(s, "allOf"); all && all->is_array())
		for (const Json& part : *all)
			if (Json list = constants(part); !list.is_null()) return list;
	return nullptr;
}

} // namespace kvrun::grammar
