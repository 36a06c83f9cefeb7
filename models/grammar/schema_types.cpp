// JSON types of the values that a schema allows.
#include "models/grammar/schema_types.h"
#include "models/grammar/schema_keywords.h"

namespace kvrun::grammar {
namespace {

constexpr int kDeepest = 32;    // schemas inside each other, through $ref as well
constexpr int kMostParts = 500; // visited schemas: those that name each other several times would take too long

Types named(const std::string& type) {
	if (type == "number") return kFractions | kIntegers;
	for (size_t i = 0; i < std::size(kTypes); ++i)
		if (type == kTypes[i]) return Types(1u << i);
	return kAllTypes;
}

class Reader {
 public:
	explicit Reader(const Json& whole) : whole_(whole) {}

	Types schema(const Json& s, int depth = 0) {
		if (s == Json(false)) return 0;
		if (!s.is_object() || depth > kDeepest || ++n_parts_ > kMostParts) return kAllTypes;
		Types out = kAllTypes;
		bool says = false; // else keywords imply a type, as in grammars
		const auto limit = [&](Types t) { out &= t, says = true; };
		const auto each = [&](const Json* list, auto type) {
			if (!list) return;
			Types any = list->is_array() ? 0 : type(*list);
			if (list->is_array())
				for (const Json& v : *list) any |= type(v);
			limit(any);
		};
		const auto part = [&](const Json& p) { return schema(p, depth + 1); };
		each(find(s, "type"), [](const Json& t) { return t.is_string() ? named(t.get<std::string>()) : kAllTypes; });
		each(find(s, "enum"), [](const Json& v) { return named(type_of(v)); });
		if (const Json* c = find(s, "const")) limit(named(type_of(*c)));
		for (const char* key : {"anyOf", "oneOf"}) each(find(s, key), part);
		if (const Json* all = find(s, "allOf"); all && all->is_array())
			for (const Json& p : *all) limit(part(p));
		if (const Json* ref = find(s, "$ref")) limit(target(*ref, depth));
		return says ? out : implied(s);
	}

 private:
	Types target(const Json& ref, int depth) {
		const std::string* text = ref.get_ptr<const std::string*>();
		const Json* found = text && (*text == "#" || text->starts_with("#/")) ? find_part(whole_, *text) : nullptr;
		return found ? schema(*found, depth + 1) : kAllTypes;
	}
	static Types implied(const Json& s) {
		Types out = 0;
		for (const auto& [key, type] : kTypeOf)
			if (s.contains(key)) out |= named(type);
		return out ? out : kAllTypes;
	}

	const Json& whole_;
	int n_parts_ = 0;
};

} // namespace

Types allowed_types(const Json& schema, const Json& whole) {
	const Types out = Reader(whole).schema(schema);
	return out ? out : kAllTypes;
}

bool has_type(const Json& v, Types types) {
	return types & (v.is_number_integer() ? kIntegers : v.is_number() ? kFractions : named(type_of(v)));
}

} // namespace kvrun::grammar
