// Merges schemas that must all hold (allOf, keywords beside $ref) into one schema.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace kvrun::grammar {

using Json = nlohmann::ordered_json;

std::string schema_fault(const std::string& pointer, const std::string& what); // a line that says both
[[noreturn]] void refuse_schema(const std::string& pointer, const std::string& what);
bool is_annotation(const std::string& keyword); // it says nothing about values

// Both schemas must be objects. Keywords that cannot be merged go into "allOf" or "anyOf" of subschemas.
Json merge_schemas(const Json& a, const Json& b, const std::string& pointer);

} // namespace kvrun::grammar
