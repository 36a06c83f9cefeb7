// Regular expressions of JSON schemas ("pattern") as rules.
#pragma once
#include "models/grammar/json_text.h"

namespace kvrun::grammar {

// The inside of a JSON string that has a match of an ECMA-262 pattern; ^ at its beginning and $ at its end hold it to
// the whole string. Throws Error{Unsupported} that names what no grammar can do: looking around, references, \b, or ^
// and $ elsewhere; Error{Format} where it is no pattern.
ExprId pattern_text(Rules&, JsonText&, std::string_view pattern);

} // namespace kvrun::grammar
