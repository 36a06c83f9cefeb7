// Grammars of JSON schemas that have keywords which grammars do not enforce.
#include "tools/serve/loose_schema.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr int kMostRefusals = 100; // of one schema, each about one keyword

// Keywords that limit the values further: without them a grammar has more texts, but none that is of another kind.
constexpr const char* kLimits[] = {
    "contains",      "dependencies",  "dependentRequired", "dependentSchemas",      "else",       "format", "if",
    "maxContains",   "maxProperties", "minContains",       "minProperties",         "multipleOf", "not",    "pattern",
    "propertyNames", "then",          "unevaluatedItems",  "unevaluatedProperties", "uniqueItems"};

// Keywords whose value is a schema, an array of schemas, or an object of schemas by name.
constexpr const char* kOne[] = {"additionalProperties", "items"};
constexpr const char* kList[] = {"allOf", "anyOf", "oneOf", "prefixItems"};
constexpr const char* kNamed[] = {"$defs", "definitions", "properties"};

bool erase_everywhere(Json& schema, const std::string& keyword) {
	if (!schema.is_object()) return false;
	bool found = schema.erase(keyword) > 0;
	for (const char* key : kOne)
		if (schema.contains(key)) found |= erase_everywhere(schema[key], keyword);
	for (const auto& keys : {std::span<const char* const>(kList), std::span<const char* const>(kNamed)})
		for (const char* key : keys)
			if (schema.contains(key) && schema[key].is_structured())
				for (Json& each : schema[key]) found |= erase_everywhere(each, keyword);
	return found;
}

Json* at_pointer(Json& schema, const std::string& pointer) {
	try {
		return &schema.at(Json::json_pointer(pointer));
	} catch (const Json::exception&) { return nullptr; }
}

bool may_go(const std::string& keyword) { return std::ranges::count(kLimits, keyword) > 0; }

} // namespace

std::string leave_out(Json& schema, const std::string& message) {
	constexpr std::string_view begin = "the JSON schema at #";
	const size_t at = message.find(begin), from = at + begin.size();
	const size_t end = at == message.npos ? message.npos : message.find(": ", from);
	if (end == message.npos) return {};
	const std::string pointer = message.substr(from, end - from);
	if (message.find("two of pattern, format and lengths") != message.npos) { // the pattern or format is said alone
		Json* where = at_pointer(schema, pointer);
		if (!where || !where->is_object()) return {};
		const bool both = where->contains("pattern") && where->contains("format");
		for (const char* key : {both ? "pattern" : "minLength", both ? "pattern" : "maxLength"}) where->erase(key);
		return both ? "pattern" : "minLength and maxLength";
	}
	const size_t slash = pointer.rfind('/');
	if (slash == pointer.npos) return {};
	const std::string keyword = pointer.substr(slash + 1);
	Json* parent = at_pointer(schema, pointer.substr(0, slash));
	if (!parent || !parent->is_object() || !parent->contains(keyword)) // of a schema that was merged into another
		return may_go(keyword) && erase_everywhere(schema, keyword) ? keyword : "";
	if (!may_go(keyword)) return {};
	parent->erase(keyword);
	return keyword;
}

GrammarHandle loose_grammar(const Model& model, kvrun_grammar_options o, const ChatPrompt* prompt, const char* field,
                            const Rules& rules) {
	Json schema = o.json_schema ? json_or_null(o.json_schema) : Json();
	std::string text;
	for (int i = 0;; ++i) try {
			return model.new_grammar(o, prompt, field);
		} catch (const ApiError& e) {
			if (schema.is_null() || rules.strict || i == kMostRefusals) throw;
			const std::string keyword = leave_out(schema, e.what());
			if (keyword.empty()) throw;
			rules.ignored("keyword '" + keyword + "' of a JSON schema is not enforced: " + e.what());
			text = dump(schema);
			o.json_schema = text.c_str();
		}
}

} // namespace kvrun::serve
