// Regular expressions of JSON schemas ("pattern") as rules.
#pragma once
#include "models/grammar/json_text.h"

namespace kvrun::grammar {

// The content of a JSON string in which an ECMA-262 pattern matches; ^ at its beginning and $ at its end anchor it.
// Throws Error{Unsupported} for lookaround, back references, \b, and ^ or $ elsewhere; Error{Format} for an invalid
// pattern.
ExprId pattern_text(Rules&, JsonText&, std::string_view pattern);

} // namespace kvrun::grammar
