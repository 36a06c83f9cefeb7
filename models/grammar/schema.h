// JSON schemas (draft 2020-12) as grammars of JSON texts.
#pragma once
#include "models/grammar/json_text.h"
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace kvrun::grammar {

// Adds rules for the values of a schema; the schema is the document in which $ref is resolved. Every text of the
// grammar is valid, but the grammar does not have every valid text: properties are in the order of the schema, others
// are allowed only with additionalProperties, and a keyword for objects, arrays, strings or numbers implies that type.
// Throws Error{Unsupported} or Error{Format} with a JSON pointer and the keyword at fault.
//
// Told, in a line that has its JSON pointer, of a keyword that only limits values further and that grammars cannot
// enforce; it is then left out. Empty: such a keyword is refused.
using LeftOut = std::function<void(const std::string& line)>;
ExprId add_schema(Rules&, const nlohmann::ordered_json& schema, const LeftOut& = {});
// The same for a part of a document; $ref is resolved in the document.
ExprId add_schema(Rules&, const nlohmann::ordered_json& part, const std::string& pointer,
                  const nlohmann::ordered_json& whole, const Dialect&, const LeftOut& = {});
// A grammar from the text of a schema. Throws Error{Format} if the text is not JSON.
Rules schema_grammar(std::string_view schema_text);

} // namespace kvrun::grammar
