// JSON schemas (draft 2020-12) as grammars of JSON texts.
#pragma once
#include "models/grammar/json_text.h"
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace kvrun::grammar {

// Adds what a schema's values look like; the schema is the whole document that $ref points into. Every text of the
// grammar is valid. Not every valid one is a text of it: properties come in the order of the schema, others only where
// additionalProperties is given, and keywords for objects, arrays, texts or numbers ask for these without "type".
// Throws Error{Unsupported} or Error{Format} with a JSON pointer and the keyword that it does not do.
ExprId add_schema(Rules&, const nlohmann::ordered_json& schema);
// The same of a part of a document, whose $ref point into the whole.
ExprId add_schema(Rules&, const nlohmann::ordered_json& part, const std::string& pointer,
                  const nlohmann::ordered_json& whole, const Dialect&);
// As a grammar of its own. The text is read here: Error{Format} where it is no JSON.
Rules schema_grammar(std::string_view schema_text);

} // namespace kvrun::grammar
