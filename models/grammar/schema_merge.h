// Merges schemas that must all hold (allOf, keywords beside $ref) into one schema.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace kvrun::grammar {

using Json = nlohmann::ordered_json;

// What a part of a schema is called in messages; keywords that hold nothing to be checked.
[[noreturn]] void refuse_schema(const std::string& pointer, const std::string& what);
bool is_annotation(const std::string& keyword);

// Both schemas must be objects. Keywords that cannot be merged go into "allOf" or "anyOf" of subschemas.
Json merge_schemas(const Json& a, const Json& b, const std::string& pointer);

} // namespace kvrun::grammar
