// oneOf: exactly one schema may hold, which a grammar knows only where no value fits two of them.
#pragma once
#include "models/grammar/schema_merge.h"
#include <functional>
#include <string>

namespace kvrun::grammar {

using Resolve = std::function<const Json&(const Json&)>; // a schema, or the one that its $ref names

// Error{Unsupported} unless each two of the schemas are told apart by a type or a constant.
void check_apart(const Json& list, const std::string& pointer, const Resolve&);

} // namespace kvrun::grammar
