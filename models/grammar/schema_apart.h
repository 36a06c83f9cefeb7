// oneOf: exactly one schema may hold. A grammar can guarantee this only if no value fits two of them.
#pragma once
#include "models/grammar/schema_merge.h"
#include <functional>
#include <string>

namespace kvrun::grammar {

using Resolve = std::function<const Json&(const Json&)>; // returns the schema, or the one that its $ref names

// Throws Error{Unsupported} unless a type or a constant distinguishes each pair of schemas.
void check_apart(const Json& list, const std::string& pointer, const Resolve&);

} // namespace kvrun::grammar
